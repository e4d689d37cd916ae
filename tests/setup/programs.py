"""Stand-ins for programs on PATH: small shell scripts."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKS = 'echo "$0"'
"""A Python that holds jaxpar: asked who it is, it names itself."""
FAILING_SHIM = 'echo "pyenv: python: command not found" >&2; exit 127'
"""The shim that pyenv leaves on PATH for a version that is not active."""


def altered_python(change: str) -> str:
    """A script that is the Python of these tests after `change` (statements that may use `sys`), for `-c CODE`."""
    return f"exec '{sys.executable}' -c 'import sys; {change}; exec(sys.argv[2])' \"$@\""


def program(path: Path, script: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a bash script with no environment but this."""
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run([bash, str(script), *arguments], env=environment, capture_output=True, text=True, check=False)
