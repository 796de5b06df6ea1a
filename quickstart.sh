#!/usr/bin/env bash
# quickstart.sh - on a bare Debian 12: installs what is missing, builds, fetches a real Gemma 3 and
# encodes three prompts on the CPU. Run it again as often as you like.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
. scripts/setup.sh

case "${1:-}" in
"") ;;
-h | --help)
    echo "usage: ./quickstart.sh    (sets everything up and encodes three prompts)"
    exit 0
    ;;
*) fail "unknown argument $1; it takes none" ;;
esac

install_packages "${BUILD_PACKAGES[@]}" "${MODEL_PACKAGES[@]}"
echo "building"
build release --target prompt-encoder
fetch_model

set -- \
    "A red fox runs through fresh snow at dawn." \
    "A slow dolly shot through a rain soaked neon market at night, steam rising from food stalls." \
    "blurry, low quality, distorted, watermark"
echo
echo "\$ build/release/bin/prompt-encoder encode --model $MODEL -o hidden_states.safetensors PROMPT..."
build/release/bin/prompt-encoder encode --model "$MODEL" -o hidden_states.safetensors "$@"
cat <<'TEXT'

hidden_states.safetensors holds p0.hidden_states [states, tokens, width] and so on; next:
  build/release/bin/prompt-encoder encode --help
  build/release/bin/prompt-encoder inspect models/gemma-3-270m-q4_k_m.gguf
TEXT
