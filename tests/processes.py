"""Python in a process of its own, and work in forks of this one."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
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


def fork(work: Callable[[], object]) -> int:
    """Begin some work in a fork of this process; the id of the new process."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def finished(child: int) -> bool:
    """Wait for a fork: whether it ended by itself, and not by a kill (-9). Any other end is an error."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"the work failed with {code}"
    return code == 0
