#!/usr/bin/env bash
# Makes one of the two environments, or does nothing if it stands and still matches:
#   launch/setup.sh train   .venv       jaxpar, and CUDA where there is an NVIDIA driver
#   launch/setup.sh test    .venv-test  jaxpar, the tools of the tests, XLA's GPU compiler for machines without a GPU
# They are two, because the light GPU compiler would stand in the way of real CUDA, and print warnings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_nvidia_driver() {
    [ -e /proc/driver/nvidia/version ] || { command -v nvidia-smi && nvidia-smi; } >/dev/null 2>&1
}

case "${1:-}" in
    train) venv=.venv extras=$(if has_nvidia_driver; then echo '[data,cuda12]'; else echo '[data]'; fi) ;;
    test) venv=.venv-test extras='[test,compile,data,serve]' ;;
    *) echo "usage: launch/setup.sh train|test" >&2 && exit 2 ;;
esac

# A link leads to an environment of another folder, which is used as it is and never cleared from here.
if [ -L "$venv" ]; then exit 0; fi
if [ "$venv" = .venv-test ]; then launch/install_browser.sh; fi

# An environment stands when its stamp, written last, names this folder and these requirements.
here="$PWD"
stamp="$venv/installed"
requirements="$extras $(cat pyproject.toml constraints.txt | cksum)"
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$here"$'\n'"$requirements" ]; then
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() {
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        echo "Setting up $venv failed at: $*" >&2
        exit 1
    fi
}

# Kept and brought up to date when it was made here; rebuilt when it is broken, unfinished or was moved.
if ! { [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$here" ] && "$venv/bin/python" -c "" 2>"$log"; }; then
    python=$(launch/find_python.sh)
    echo "Making $venv with $("$python" -V) ($python)"
    run "$python" -m venv --clear "$venv"
fi
echo "Installing jaxpar$extras into $venv: a minute or more, once"
rm -f "$stamp"
pip=("$venv/bin/python" -m pip install --disable-pip-version-check --no-input -c constraints.txt)
run "${pip[@]}" -e ".$extras"
# The disassembler of GPUs' machine code (6 MB) is kept apart: where Python finds a package nvidia.cu13, JAX takes that
# for its CUDA folder, and so not the ptxas of `compile`.
if [ "$venv" = .venv-test ]; then run "${pip[@]}" --upgrade --no-deps --target "$venv/disassembler" nvidia-cuda-nvdisasm; fi
printf '%s\n' "$here" "$requirements" >"$stamp"
