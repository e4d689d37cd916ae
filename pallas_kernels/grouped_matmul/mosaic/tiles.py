"""Tiles of the kernels: 128 rows of the result, 64 of each consumer, and as many columns as waste least.

With 256 columns a step of 16 takes a warpgroup 128 cycles on the tensor cores, and reads 10 KB of shared memory, 80 of
128 bytes a cycle; with 128 columns 96 bytes. So the widest tile is taken of which the fewest columns lie outside. All
tables are derived and compiled, not measured.
"""

from __future__ import annotations

ROWS = 128
"""Of a tile: two consumers."""
ALIGN = 8
"""Tiles begin at multiples of this: a swizzled tile in shared memory is made of 8 rows."""
STEP = 64
"""Of the side that is summed over: a row of a swizzled tile is 128 bytes."""
WIDTHS = (256, 192, 128)
STAGES = {256: 3, 192: 4, 128: 5}
"""Steps in shared memory: beside the result, which leaves through it, as many as fit into 227 KiB."""
SECTION = 8
"""Tiles of rows that are gone through together, column by column: 132 programs then read the rows of 8 tiles and 16
columns of the weights, which stay in L2."""


def columns(wide: int) -> int:
    """Of a tile, where the result has so many."""
    return min(WIDTHS, key=lambda tile: (-(-wide // tile) * tile, -tile))
