"""Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_python(
    *arguments: object, cwd: Path = ROOT, without: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS`, with what it prints.

    Args:
        arguments: of the command line; each becomes text.
        cwd: the folder in which it runs.
        without: beginnings of the names of those variables of this environment that it does not have.
        variables: what its environment has beside.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(without)} | variables
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
