"""`python -m tests.training.odd_loader ...`: jaxpar.train with the arguments, on batches that are not in order.

To process 1 each batch comes late. The loss mask of batch 5 (from 1) is infinite; the labels of batch 14 are such that
nothing leads to them.
"""

import sys
from typing import Any

import jax
import numpy as np

from jaxpar.runtime.batch import BatchPlacer
from jaxpar.train import main
from tests.training.late import Late

INFINITE, SPIKED = 5, 14

if __name__ == "__main__":
    place, late = BatchPlacer.__call__, Late(0.5)

    def oddly(self: BatchPlacer, rows: dict[str, np.ndarray], batch: Any = None) -> Any:
        if jax.process_index() == 1:
            late()
        number = int(rows["examples"][0]) // (self.batch.shape[0] * self.batch.shape[1]) + 1
        if number == INFINITE:
            rows = {**rows, "mask": np.where(rows["mask"] > 0, np.float32(np.inf), 0)}
        if number == SPIKED:
            rows = {**rows, "labels": np.full_like(rows["labels"], 63)}
        return place(self, rows, batch)

    BatchPlacer.__call__ = oddly
    sys.exit(main(sys.argv[1:]))
