"""Cuts the rows of a batch into short documents, so that ranks hold different numbers of tokens that count."""

import numpy as np


def into_documents(rows: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """`rows` with documents of about six tokens, some padding, and one row in which nothing counts.

    A document's last token has no label. Positions restart with each document.
    """
    count, length = rows["tokens"].shape
    draw = np.random.default_rng(seed)
    first = draw.random((count, length)) < 1 / 6
    first[:, 0] = True
    indices = np.arange(length, dtype=np.int32)
    segments = np.cumsum(first, axis=1).astype(np.int32)
    positions = indices - np.maximum.accumulate(np.where(first, indices, 0), axis=1)
    mask = np.ones((count, length), np.float32)
    mask[:, :-1] -= first[:, 1:]
    for row in draw.choice(count, count // 2, replace=False):
        padding = int(draw.integers(1, length // 2))
        segments[row, -padding:], mask[row, -padding:] = 0, 0
    mask[draw.integers(count)] = 0
    return rows | {"segments": segments, "positions": positions.astype(np.int32), "mask": mask}
