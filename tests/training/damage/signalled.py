"""Training from the command line, where process 1 sends itself SIGTERM at the moment that SIGNAL names."""

import os
import signal
import sys
from functools import cached_property
from typing import Any

import jax

from jaxpar.train import main
from jaxpar.training.run.run import Run
from jaxpar.training.run.trainer import Trainer
from jaxpar.training.step.forward_backward import StepMetrics

AT = 3
"""Step of this process in or before which the signal comes."""


class _Signalled(Run):
    steps_taken = 0

    @cached_property
    def compiled(self) -> Any:
        _signal("before the first step")
        return super().compiled

    def step(self) -> StepMetrics:
        self.steps_taken += 1
        if self.steps_taken == AT:
            _signal("between steps")
        metrics = super().step()
        if self.steps_taken == AT:
            _signal("in a step")
        return metrics


def _signal(moment: str) -> None:
    if moment == os.environ["SIGNAL"] and jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    Trainer._make_run = _Signalled
    sys.exit(main(sys.argv[1:]))
