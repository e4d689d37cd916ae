"""`python -m tests.training.odd_loader SECONDS INFINITE SPIKED ...`: jaxpar.train on batches that are not in order.

With SECONDS above 0 each batch comes late, by at least so much. The loss mask of batch INFINITE (from 1) is infinite;
the labels of batch SPIKED are such that nothing leads to them.
"""

import sys
from typing import Any

import numpy as np

from jaxpar.runtime.batch import BatchPlacer
from jaxpar.train import main
from tests.training.late import Late

if __name__ == "__main__":
    seconds, infinite, spiked = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    place, late = BatchPlacer.__call__, Late(seconds)

    def oddly(self: BatchPlacer, rows: dict[str, np.ndarray], batch: Any = None) -> Any:
        if seconds:
            late()
        number = int(rows["examples"][0]) // (self.batch.shape[0] * self.batch.shape[1]) + 1
        if number == infinite:
            rows = {**rows, "mask": np.where(rows["mask"] > 0, np.float32(np.inf), 0)}
        if number == spiked:
            rows = {**rows, "labels": np.full_like(rows["labels"], 63)}
        return place(self, rows, batch)

    BatchPlacer.__call__ = oddly
    sys.exit(main(sys.argv[4:]))
