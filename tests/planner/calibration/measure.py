"""`python -m tests.planner.calibration.measure OUTPUT KEY=VALUE...`: a quick calibration as a process of a job."""

from __future__ import annotations

import sys
from pathlib import Path

from jaxpar.planner.calibration.calibrate import SMALL, Calibration, Sizes

SIZES = Sizes(
    tokens=(1,), tensor=(1,), lengths=(32,), memory=2**12, copies=(), messages=(2**12,), loop_s=1e-4,
)  # fmt: skip

if __name__ == "__main__":
    model = [f"model.{key}={size}" for key, size in (("embed", 32), ("heads", 4), ("kv_heads", 4), ("mlp", 32))]
    file, *job = sys.argv[1:]
    assert SMALL.model.vocab is not None
    Calibration(Path(file), None, [*model, *job], devices=4, sizes=SIZES).run()
