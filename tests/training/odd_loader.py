"""`python -m tests.training.odd_loader SECONDS INFINITE SPIKED ...`: jaxpar.train on batches that are not in order.

With SECONDS above 0 each batch comes late: that long after the devices have nothing left to do, or as long as the last
step took where that is more, so that it is late on a machine of any speed. The loss mask of batch INFINITE (from 1) is
infinite; the labels of batch SPIKED are such that nothing leads to them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import numpy as np

from jaxpar.train import main
from jaxpar.training.step.batches import BatchPlacer

MOST = 5.0
"""Seconds; the first step takes long because it is compiled."""

if __name__ == "__main__":
    seconds, infinite, spiked = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    place, came = BatchPlacer.__call__, time.monotonic()

    def oddly(self: BatchPlacer, rows: dict[str, np.ndarray]) -> Any:
        global came
        if seconds:
            jax.block_until_ready(jax.live_arrays())  # Else the devices could be at work as long as this one sleeps.
            time.sleep(max(seconds, min(MOST, time.monotonic() - came)))
            came = time.monotonic()
        number = int(rows["examples"][0]) // (self.shape[0] * self.shape[1]) + 1
        if number == infinite:
            rows = {**rows, "mask": np.where(rows["mask"] > 0, np.float32(np.inf), 0)}
        if number == spiked:
            rows = {**rows, "labels": np.full_like(rows["labels"], 63)}
        return place(self, rows)

    BatchPlacer.__call__ = oddly
    sys.exit(main(sys.argv[4:]))
