"""Tiles of the kernels: 128 rows of the result, 64 of each consumer, and the number of columns that wastes least.

With 256 columns a step of 16 takes a warpgroup 128 cycles on the tensor cores, and reads 10 KB of shared memory, 80 of
128 bytes a cycle; with 128 columns 96 bytes. So the widest tile with the fewest columns outside is chosen. All
tables are derived and compiled, not measured.
"""

from __future__ import annotations

ROWS = 128
"""Rows of a tile: 64 for each of two consumers."""
ALIGN = 8
"""Tiles begin at multiples of this: a swizzled tile in shared memory is made of 8 rows."""
STEP = 64
"""Elements of the contraction per step: a row of a swizzled tile is 128 bytes."""
WIDTHS = (256, 192, 128)
STAGES = {256: 3, 192: 4, 128: 5}
"""Steps in shared memory: beside the result, which leaves through it, as many as fit into 227 KiB."""
SECTION = 8
"""Tiles of rows that are gone through together, column by column: 132 programs then read the rows of 8 tiles and 16
columns of the weights, which stay in L2."""


def columns(wide: int) -> int:
    """Columns of a tile for a result of `wide` columns."""
    return min(WIDTHS, key=lambda tile: (-(-wide // tile) * tile, -tile))
