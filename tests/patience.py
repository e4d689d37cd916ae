"""How long to wait on this machine: limits of tests grow where a fixed piece of work takes longer than it should.

Beside other jobs, or on a slower machine, a process takes longer to get on, and is not stuck. Whoever waits for one
waits for `seconds(60)`. The measure is taken once per session and handed to child processes.
"""

import os
import time

VARIABLE = "JAXPAR_TEST_SLOWNESS"
ROUNDS, QUIET_S = 3_000_000, 0.25
"""A fixed piece of work, and what it takes on the slowest machine of the tests when nothing else runs."""
MOST = 20.0


def slowness() -> float:
    """How many times slower than a quiet machine this one is; at least 1."""
    if VARIABLE not in os.environ:
        began, total = time.monotonic(), 0
        for number in range(ROUNDS):
            total += number
        os.environ[VARIABLE] = str(min(MOST, max(1.0, (time.monotonic() - began) / QUIET_S)))
    return float(os.environ[VARIABLE])


def seconds(quiet: float) -> float:
    """As long on this machine as `quiet` seconds on a quiet one."""
    return quiet * slowness()
