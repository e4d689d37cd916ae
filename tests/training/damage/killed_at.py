"""Training from the command line, in a job of which process VICTIM kills itself (-9) AFTER seconds after it has come to
what PLACE names."""

import os
import signal
import sys
import threading
from typing import Any

import jax

from jaxpar.distributed import liveness
from jaxpar.train import main

_at = liveness.report_activity


def _watched(where: str, **how: Any) -> None:
    _at(where, **how)
    if where.startswith(os.environ["PLACE"]) and jax.process_index() == int(os.environ["VICTIM"]):
        threading.Timer(float(os.environ["AFTER"]), os.kill, (os.getpid(), signal.SIGKILL)).start()


if __name__ == "__main__":
    liveness.report_activity = _watched
    sys.exit(main(sys.argv[1:]))
