"""`python -m tests.training.slow_loader SECONDS ...`: jaxpar.train, but each batch takes that long to come."""

from __future__ import annotations

import sys
import time
from typing import Any

from jaxpar.train import main
from jaxpar.training.batches import BatchPlacer

if __name__ == "__main__":
    seconds = float(sys.argv[1])
    place = BatchPlacer.__call__

    def slowly(self: BatchPlacer, rows: Any) -> Any:
        time.sleep(seconds)
        return place(self, rows)

    BatchPlacer.__call__ = slowly
    sys.exit(main(sys.argv[2:]))
