#!/usr/bin/env bash
# run_openapi_validator.sh ROOT SCRATCH_DIR - the contract against OpenAPI's own schema: what
# test_openapi.py, which needs no network, leaves out. Its packages go to a virtual environment in
# SCRATCH_DIR.
set -euo pipefail
root=$(readlink -f "$1") scratch=$2
mkdir -p "$scratch"
venv=$(readlink -f "$scratch")/openapi-spec-validator
[ -x "$venv/bin/openapi-spec-validator" ] || {
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -q openapi-spec-validator==0.9.0
}
"$venv/bin/openapi-spec-validator" "$root/openapi/openapi.yaml"
