"""Training from the command line, in a process whose main thread falls asleep: when it has taken SLEEP_AT steps, or,
where that is `data` or `compile`, when it opens its data or compiles the step."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from jaxpar.train import main
from jaxpar.training.run import setup
from jaxpar.training.run.run import Run
from jaxpar.training.run.trainer import Trainer
from jaxpar.training.step.forward_backward import StepMetrics

SLEEP_S = 300.0


class _Sleeper(Run):
    steps_taken = 0

    def step(self) -> StepMetrics:
        if self.steps_taken == int(os.environ["SLEEP_AT"]):
            _sleep()
        self.steps_taken += 1
        return super().step()


def _sleep(*_: Any, **__: Any) -> None:
    Path(os.environ["BELL"]).write_text(repr(time.time()))
    time.sleep(SLEEP_S)


if __name__ == "__main__":
    if os.environ["SLEEP_AT"] == "data":
        setup.open_data = _sleep
    if os.environ["SLEEP_AT"] == "compile":
        Run.compile_with_initial = _sleep
    Trainer._make_run = _Sleeper
    sys.exit(main(sys.argv[1:]))
