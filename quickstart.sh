#!/usr/bin/env bash
# quickstart.sh - on a bare Debian 12: installs what is missing, builds, fetches a real Gemma 3, encodes
# three prompts on the CPU to hidden states, and two to embeddings (with an LTX checkpoint of random
# weights, as the real ones are tens of GB), then serves over HTTP and asks it. Run it again as often
# as you like.
#   ./quickstart.sh          serves until Ctrl-C
#   ./quickstart.sh --once   stops after the requests
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
. scripts/setup.sh

once=no
case "${1:-}" in
"") ;;
--once) once=yes ;;
-h | --help)
    sed -n '2,7s/^# //p' "$0"
    exit 0
    ;;
*) fail "unknown argument $1; see --help" ;;
esac

install_packages "${BUILD_PACKAGES[@]}" "${MODEL_PACKAGES[@]}" redis-server curl
echo "building"
build release --target prompt-encoder prompt-encoder-engine prompt-encoder-service
fetch_model

set -- \
    "A red fox runs through fresh snow at dawn." \
    "A slow dolly shot through a rain soaked neon market at night, steam rising from food stalls." \
    "blurry, low quality, distorted, watermark"
echo
echo "\$ build/release/bin/prompt-encoder encode --model $MODEL -o hidden_states.safetensors PROMPT..."
build/release/bin/prompt-encoder encode --model "$MODEL" -o hidden_states.safetensors "$@"

# The rest of the way: extractor and connectors. No real LTX weights are needed to see it work.
LTX=models/gemma-3-270m-random-ltx.safetensors
echo
echo "an LTX checkpoint of RANDOM weights: embeddings have their real form, and mean nothing"
echo "\$ build/release/bin/prompt-encoder random-ltx --model $MODEL -o $LTX"
build/release/bin/prompt-encoder random-ltx --model "$MODEL" -o "$LTX"
echo "\$ build/release/bin/prompt-encoder encode --model $MODEL --ltx $LTX -o embeddings.safetensors PROMPT..."
build/release/bin/prompt-encoder encode --model "$MODEL" --ltx "$LTX" -o embeddings.safetensors "$1" "$3"

# The same over HTTP. Port 8080 where it is free.
listen=127.0.0.1:8080
! (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null || listen=127.0.0.1:0
mkdir -p build
echo
echo "\$ build/release/bin/prompt-encoder up --model $MODEL --ltx $LTX --listen $listen"
rm -f build/quickstart.ready
mkfifo -m 600 build/quickstart.ready
build/release/bin/prompt-encoder up --model "$MODEL" --ltx "$LTX" --listen "$listen" --state build/quickstart-state \
    >build/quickstart.ready &
up=$!
trap 'kill -INT $up 2>/dev/null; wait $up || true; rm -f build/quickstart.ready' EXIT
read -r _ url <build/quickstart.ready || fail "the service did not start"
echo "ready $url"

ask()
{
    printf "\n\$ curl -s %s/v1/encode -H 'Content-Type: application/json' -d '%s' -o %s\n" "$url" "$1" "$2"
    curl -sS -f -o "$2" -D build/quickstart.headers -H 'Content-Type: application/json' \
        -w '  %{http_code}, %{size_download} bytes, %{time_total} s' -d "$1" "$url/v1/encode"
    sed -n 's/\r$//; s/^X-Cache: /, X-Cache: /p' build/quickstart.headers
}
pair='{"prompt": "A red fox runs through fresh snow at dawn.", "negative_prompt": "blurry, low quality", "output": "embeddings"}'
ask '{"prompt": "A lighthouse in a storm, waves breaking over the rocks", "output": "hidden_states", "layers": [18]}' last_layer.safetensors
ask "$pair" pair.safetensors
ask "$pair" pair.safetensors

[ $once = no ] || exit 0
echo
echo "serving at $url until Ctrl-C"
wait $up
