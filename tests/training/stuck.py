"""Training from the command line, in a process whose main thread falls asleep when it has taken so many steps."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from jaxpar.train import main
from jaxpar.training.step import StepMetrics
from jaxpar.training.trainer import Trainer

SLEEP_S = 300.0
BELL = "asleep"
"""File in the folder of runs that says when the sleep began, by the clock of the machine."""


class _Sleeper(Trainer):
    steps_taken = 0

    def step(self) -> StepMetrics:
        if self.steps_taken == int(os.environ["SLEEP_AT"]):
            (Path(self.config.run.dir) / BELL).write_text(repr(time.time()))
            time.sleep(SLEEP_S)
        self.steps_taken += 1
        return super().step()


if __name__ == "__main__":
    sys.modules["jaxpar.training.trainer"].Trainer = _Sleeper  # pyright: ignore[reportAttributeAccessIssue]
    sys.exit(main(sys.argv[1:]))
