#!/usr/bin/env bash
# Prints the path of a Python that can hold jaxpar: CPython 3.12 or newer, with venv, ensurepip and ssl.
# Every candidate is run, because a name on PATH proves nothing: a pyenv shim exists for versions that are not active.
# Order: $PYTHON, python3.14 ... python3.12 and python3 on PATH, those that pyenv and uv installed, one that uv installs.
set -uo pipefail

readonly WANTED="CPython 3.12 or newer with the modules venv, ensurepip and ssl"
readonly PROBE='
import sys, sysconfig
if sys.version_info < (3, 12) or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
import ensurepip, ssl, venv
print(getattr(sys, "_base_executable", None) or sys.executable)
'

# Runs candidate $1; on success prints the interpreter behind it (behind a shim or a virtual environment) and ends.
try() {
    local path
    path=$("$1" -c "$PROBE" 2>/dev/null </dev/null) && [ -x "$path" ] && echo "$path" && exit 0
}

# Tries bin/python3 of each version installed under folder $1 whose name begins with $2: the version that
# constraints.txt was made on first.
try_folder() {
    local minor folder
    for minor in 3.12 3.13 3.14; do
        for folder in "$1/$2$minor"*/; do
            try "$folder/bin/python3"
        done
    done
}

if [ -n "${PYTHON:-}" ]; then
    try "$PYTHON"
    echo "PYTHON=$PYTHON is not $WANTED; looking for another." >&2
fi
for name in python3.14 python3.13 python3.12 python3; do
    try "$name"
done
try_folder "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions" ""
try_folder "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-${HOME:-}/.local/share}/uv/python}" cpython-
for uv in uv "${HOME:-}/.local/bin/uv" "${HOME:-}/.cargo/bin/uv"; do
    if "$uv" --version >/dev/null 2>&1 && "$uv" python install 3.12 >/dev/null 2>&1; then
        try "$("$uv" python find --no-project --system 3.12 2>/dev/null)"
    fi
done

echo "No Python found: jaxpar needs $WANTED (on PATH, under pyenv, from uv, or named by PYTHON=/path/to/python)." >&2
exit 1
