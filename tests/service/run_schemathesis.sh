#!/usr/bin/env bash
# run_schemathesis.sh BIN_DIR TESTS_DIR SCRATCH_DIR - the contract against the service: schemathesis makes
# requests from openapi/openapi.yaml, and every answer must be as described, never a 5xx but 503 and
# 504. Its packages go to a virtual environment in SCRATCH_DIR. Two checks are left out: whether a
# valid-looking request is accepted (a layer's range and a model's name depend on the card), and that
# what was deleted is gone (a cancelled job keeps its state).
set -euo pipefail
bin=$(readlink -f "$1") tests=$(readlink -f "$2") scratch=$3
mkdir -p "$scratch"
scratch=$(readlink -f "$scratch")
venv=$scratch/schemathesis
[ -x "$venv/bin/schemathesis" ] || {
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -q schemathesis==4.32.5
}
state=$(mktemp -d /tmp/pe-schema-XXXXXX)
trap 'kill -INT $up 2>/dev/null; wait $up || true; rm -rf "$state"' EXIT
mkfifo "$state/ready"
"$bin/prompt-encoder" up --model "$tests/golden/gemma3-tiny" \
    --ltx "$tests/golden/ltx-tiny-v2.safetensors" --listen 127.0.0.1:0 --state "$state/up" \
    >"$state/ready" 2>"$state/log" &
up=$!
read -r _ url <"$state/ready"
cd "$scratch" # it leaves files where it runs
"$venv/bin/schemathesis" run "$url/openapi.yaml" --url "$url" --max-examples "${EXAMPLES:-100}" --seed 7 \
    --checks all --exclude-checks positive_data_acceptance,use_after_free
