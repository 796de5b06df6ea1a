#!/usr/bin/env bash
# run.sh BIN_DIR SECONDS - runs every libFuzzer target for so many seconds on one core each, from its
# corpus, in a scratch copy. What is found is left beside the sources as tests/fuzz/found-*.
set -euo pipefail
bin=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "$0")")"
seconds=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

one()
{
    local target=$1 name=${1#fuzz_}
    mkdir "$scratch/$name"
    if ! "$bin/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$PWD/found-$name-" "$scratch/$name" "corpus/$name" >"$scratch/$name.log" 2>&1; then
        tail -n 40 "$scratch/$name.log" >&2
        echo "$target found something: tests/fuzz/found-$name-*" >&2
        return 1
    fi
    grep -E 'number_of_executed_units|new_units_added' "$scratch/$name.log" | sed "s/^/$name: /"
}
export -f one
export bin seconds scratch
for source in fuzz_*.c; do
    echo "${source%.c}"
done | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; one {}'
