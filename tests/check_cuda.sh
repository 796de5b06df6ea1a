#!/usr/bin/env bash
# check_cuda.sh - compiles and links the CUDA backend for every architecture, and runs the tests
# that it has a part in: what needs a GPU is skipped where there is none. Without nvcc there is nothing to
# compile: a word on a laptop, a failure in CI (CI=true), which must have it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh

if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "SKIPPED cuda: no nvcc"
    [ "${CI:-}" != true ] || fail "CI has to compile the CUDA backend, and there is no nvcc"
    exit 0
fi
command -v nvcc >/dev/null || export PATH="$PATH:/usr/local/cuda/bin"
build cuda
build cuda # configured once more, it is the same
ctest --preset cuda -j "$(nproc)" --no-tests=error -R "make_models|test_ops|test_hidden_states|test_cli"
