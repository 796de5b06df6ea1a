#!/usr/bin/env bash
# run.sh BIN_DIR SECONDS - runs every libFuzzer target for so many seconds of CPU time, one core each,
# from its corpus, in a scratch copy. What is found is left as tests/fuzz/found-*.
set -euo pipefail
bin=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "$0")")"
seconds=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

one()
{
    local target=$1 name=${1#fuzz_} spent=0 runs=0 used
    local TIMEFORMAT=%U
    mkdir "$scratch/$name"
    while [ "$spent" -lt "$seconds" ]; do
        # the limit is wall time: beside other work it is given again until the CPU time is full
        if ! { time "$bin/$target" -max_total_time=$((seconds - spent)) -timeout=20 \
            -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$PWD/found-$name-" \
            "$scratch/$name" "corpus/$name" >"$scratch/$name.log" 2>&1; } 2>"$scratch/$name.time"; then
            tail -n 40 "$scratch/$name.log" >&2
            echo "$target found something: tests/fuzz/found-$name-*" >&2
            return 1
        fi
        used=$(cut -d. -f1 "$scratch/$name.time")
        spent=$((spent + used + 1))
        runs=$((runs + $(sed -n 's/.*number_of_executed_units: *//p' "$scratch/$name.log")))
    done
    echo "$name: nothing found in $runs runs, $spent s of CPU"
}
export -f one
export bin seconds scratch
for source in fuzz_*.c; do
    echo "${source%.c}"
done | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; one {}'
