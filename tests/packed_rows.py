"""A batch of packed documents that end in all places where a mixer with a state could go wrong."""

import numpy as np

from tests.small_run import SmallRun


def packed_rows(run: SmallRun) -> dict[str, np.ndarray]:
    """A batch whose documents end within chunks, at their ends, and within and at the end of a context rank's part."""
    rows, lengths = run.rows(0), ([3, 5, 1, 23], [16, 16], [32], [15, 2, 15], [8, 20, 4], [31, 1], [1, 31], [12, 20])
    one = lambda each: np.repeat(np.arange(1, len(each) + 1, dtype=np.int32), each)
    segments = np.stack([one(each) for each in lengths])
    positions = np.stack([np.concatenate([np.arange(size, dtype=np.int32) for size in each]) for each in lengths])
    return rows | {"segments": segments, "positions": positions}
