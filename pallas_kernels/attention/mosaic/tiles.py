"""Tiles of each kernel by head width: a table, so that nothing is tuned when a program runs.

They begin with FlashAttention-3's (its `hopper/tile_size.h`), under what Mosaic GPU asks for: a block is a multiple of
64, or 32, where it is contracted over: a row of a swizzled tile is 128 bytes, or 64; so 176, 112 and 80 keys are out of
reach. The rest was decided by shared memory (227 KiB) and by registers: `test_mosaic_compiled` compiles every width and
reads that nothing is spilled. All masks take the same tiles: of what 128 queries compute in blocks of 128 keys, 89% is
kept under a window of 1024 and 91% in documents of mean 1k, and with 64 keys 89% and 92%.
No GPU has timed any of this.
"""

from __future__ import annotations

from typing import NamedTuple

from pallas_kernels.attention.mosaic.backward_by_keys import KeyGradientTiles
from pallas_kernels.attention.mosaic.backward_by_queries import QueryGradientTiles
from pallas_kernels.attention.mosaic.forward import ForwardTiles


class Tiles(NamedTuple):
    """Tiles of all kernels for one pair of widths."""

    forward: ForwardTiles
    query_gradients: QueryGradientTiles
    key_gradients: tuple[tuple[str, KeyGradientTiles], ...]
    """Gradients and tiles of each launch: `k` and `v` together if the registers hold both sums."""
    fused: KeyGradientTiles | None
    """Tiles of the kernel for all gradients at once; None if the registers cannot hold them."""


_BOTH_64 = (("kv", KeyGradientTiles(64, 2)),)
_BOTH_32 = (("kv", KeyGradientTiles(32, 3)),)
_ONE_BY_ONE = (("v", KeyGradientTiles(64, 1, "none")), ("k", KeyGradientTiles(64, 1, "none")))


TABLE = {
    (64, 64): Tiles(
        ForwardTiles(128, 3), QueryGradientTiles(128, 2), (("kv", KeyGradientTiles(128, 2)),), KeyGradientTiles(128, 2)
    ),
    (96, 96): Tiles(ForwardTiles(128, 2), QueryGradientTiles(128, 2), _BOTH_64, KeyGradientTiles(64, 2, "all")),
    (128, 128): Tiles(ForwardTiles(128, 2), QueryGradientTiles(128, 2), _BOTH_64, KeyGradientTiles(64, 2, "all")),
    (192, 128): Tiles(ForwardTiles(64, 3), QueryGradientTiles(64, 2), _BOTH_32, KeyGradientTiles(32, 2, "all")),
    (256, 256): Tiles(ForwardTiles(64, 2, "none", separate_output=False), QueryGradientTiles(64, 1), _ONE_BY_ONE, None),
}
"""Tiles by (width of queries and keys, width of values)."""

CAPPED = {
    (64, 64): {"key_gradients": (("kv", KeyGradientTiles(128, 2, "none")),), "fused": KeyGradientTiles(128, 2, "none")},
    (128, 128): {"forward": ForwardTiles(128, 2, "whole"), "fused": KeyGradientTiles(64, 2, "whole")},
}
"""Differences with a soft-cap, whose second factor takes registers: with two products in flight as often as without
one, these spill 4 to 208 bytes where documents or windows cut blocks."""


def tiles(width: int, value_width: int, softcap: float | None = None) -> Tiles:
    """Tiles for heads of these widths, with or without a soft-cap of the scores."""
    sizes = width, value_width
    return TABLE[sizes] if softcap is None else TABLE[sizes]._replace(**CAPPED.get(sizes, {}))
