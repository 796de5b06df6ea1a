#!/usr/bin/env bash
# check_sources.sh - calls this project does not use, and what to use instead.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
refuse()
{
    local pattern=$1 instead=$2 found
    found=$(grep -rnE --include='*.c' --include='*.h' --include='*.cu' "(^|[^A-Za-z0-9_])$pattern" \
        base cli engine jobs kernels service tests tokenizer 2>/dev/null |
        grep -v "^${3:-nowhere}:" || true)
    [ -z "$found" ] || {
        printf '%s\n  use %s\n' "$found" "$instead" >&2
        bad=1
    }
}
refuse 'ato[if] *\('                      'options_parse_int(): all characters used, in range'
refuse '(strcpy|strcat|strncpy|stpcpy) *\(' 'snprintf() or memcpy() with a length that was checked'
refuse 'v?sprintf *\('                    'snprintf()'
refuse 'strtok(_r)? *\('                  'strchr() and lengths'
refuse 'alloca *\('                       'an array with a fixed bound, or malloc()'
refuse 'pthread_cond_timedwait *\('        'clock_cond_wait(): the wall clock may be set back' base/clock.c
refuse 'gets *\('                         'fgets()'
[ $bad = 0 ] && echo "no call that is not used here"
exit $bad
