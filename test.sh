#!/usr/bin/env bash
# test.sh - sets everything up on a bare Debian 12 and runs every test.
#   ./test.sh          at most 20 minutes on 2 cores, cold
#   ./test.sh --full   the long ones too (10 CPU minutes of fuzzing a parser): at most 75 minutes
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
. scripts/setup.sh

full=no
case "${1:-}" in
"") ;;
--full) full=yes ;;
-h | --help)
    sed -n '2,4s/^# //p' "$0"
    exit 0
    ;;
*) fail "unknown argument $1; see --help" ;;
esac

FUZZ_SECONDS=${FUZZ_SECONDS:-600}
started=$SECONDS
stage_started=$SECONDS
stage_name=
report=()

stage()
{
    [ -z "$stage_name" ] || report+=("$(printf '%5d s  %s' $((SECONDS - stage_started)) "$stage_name")")
    stage_name=${1:-}
    stage_started=$SECONDS
    [ -z "$stage_name" ] || printf '\n== %s\n' "$stage_name"
}

finish()
{
    local code=$?
    [ $code = 0 ] || report+=("  FAILED  $stage_name")
    [ $code != 0 ] || stage
    printf '\n'
    [ ${#report[@]} = 0 ] || printf '%s\n' "${report[@]}"
    printf '%5d s  in all\n' $((SECONDS - started))
    [ $code != 0 ] || echo "all tests passed"
}
trap finish EXIT

# run_tests PRESET [ctest's arguments]
run_tests()
{
    local preset=$1
    shift
    ctest --preset "$preset" -j "$(nproc)" --no-tests=error "$@"
}

stage "packages and model"
install_packages "${BUILD_PACKAGES[@]}" clang clang-format libclang-rt-14-dev gzip xz-utils \
    python3 python3-jsonschema python3-yaml redis-server
fetch_model

stage "sources: format, calls that are not used here"
cmake --preset dev >/dev/null
cmake --build --preset dev --target format-check
tests/check_sources.sh

stage "dev: gcc, warnings are errors"
build dev
run_tests dev -E "_few$" # all of them

stage "release: what users run"
build release
run_tests release -E "test_(service|engine|up|faults|rank_faults|cli_ranks)$|_(AVX2|SSE41|few)$" # they ran in dev

stage "asan: address and undefined behaviour sanitizers"
build asan
# faults: what fails is the engine, as in dev; other instructions: test_ops shows what memory they touch
run_tests asan -E "test_(faults|rank_faults|ranks|residency|cli_ranks)$|test_(embeddings|hidden_states)_"

stage "tsan: thread sanitizer, loop nests"
build tsan
# other instructions have the same threads; whole models have those that test_ranks has
run_tests tsan -E "_(AVX2|SSE41)$|test_(embeddings|hidden_states|cli_verify|cli_ranks|faults|rank_faults|ranks|residency)$"

stage "fuzz: clang, every parser's corpus under the sanitizers"
build fuzz
# programs and whole models ran under gcc's sanitizers
run_tests fuzz -E "test_(service|engine|up|faults|rank_faults|ranks|residency|embeddings|hidden_states|cli_verify|cli_ranks)$|_(AVX2|SSE41|few)$"

stage "cuda"
tests/check_cuda.sh

if [ $full = yes ]; then
    stage "fuzzing: $FUZZ_SECONDS CPU seconds a parser"
    tests/fuzz/run.sh build/fuzz/bin "$FUZZ_SECONDS"
    stage "openapi: a validator's word, and schemathesis against the service"
    tests/service/run_openapi_validator.sh . build/schemathesis
    tests/service/run_schemathesis.sh build/release/bin tests build/schemathesis
    stage "ranks: each op fails in each way, at each of two and of three"
    python3 tests/service/test_rank_faults.py build/release/bin/prompt-encoder-{service,engine} \
        build/release/bin/faulty_engine tests build/release/tests --full
    stage "mutations: the fault test can fail"
    python3 tests/service/mutations.py . build/mutations
fi
