"""Tiles of the kernels, by the widths of a head, the kind of mask and the generation of the GPU.

Nothing is tuned at run time. Entries are as large as registers and shared memory allow, and compiled; no GPU has timed
them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from pallas_kernels.attention.settings import Settings
from pallas_kernels.device import target
from pallas_kernels.masks import Kind


class Tile(NamedTuple):
    """Tile of one kernel."""

    queries: int
    keys: int
    warps: int
    stages: int
    """Loads in flight: blocks that are copied to shared memory ahead of their use."""


class Tiles(NamedTuple):
    """Tiles of the three kernels."""

    forward: Tile
    dq: Tile
    dkv: Tile


AMPERE = {
    (64, 64): Tiles(Tile(128, 64, 8, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3)),
    (96, 96): Tiles(Tile(128, 32, 8, 3), Tile(64, 32, 4, 2), Tile(32, 64, 4, 2)),
    (128, 128): Tiles(Tile(128, 32, 8, 3), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)),
    (192, 128): Tiles(Tile(128, 32, 8, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 2)),
    (256, 256): Tiles(Tile(64, 32, 8, 2), Tile(64, 32, 8, 1), Tile(32, 32, 8, 2)),
}
"""Tiles by (width, value width) of a head, for thread blocks with 99 KiB of shared memory (every GPU since Ampere)."""

AMPERE_SHORT = {(64, 64): Tile(64, 64, 4, 3), (96, 96): Tile(64, 32, 4, 3)}
"""The forward of windows and documents. With 64 queries 94% of the pairs that it computes under a window of 1024 are
kept, with 128 queries 89%; two such thread blocks fit on a multiprocessor where one of the others does."""

HOPPER = {
    (64, 64): Tiles(Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
    (96, 96): Tiles(Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
    (128, 128): Tiles(Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
    (192, 128): Tiles(Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 64, 8, 2)),
    (256, 256): Tiles(Tile(128, 64, 8, 2), Tile(64, 32, 8, 2), Tile(16, 64, 8, 2)),
}
"""Tiles for 227 KiB."""

BLACKWELL = HOPPER | {
    (64, 64): HOPPER[64, 64]._replace(dq=Tile(128, 32, 8, 2)),
    (96, 96): HOPPER[96, 96]._replace(dq=Tile(128, 32, 8, 2)),
    (128, 128): HOPPER[128, 128]._replace(forward=Tile(128, 64, 8, 2)),
    (256, 256): HOPPER[256, 256]._replace(forward=Tile(128, 32, 8, 2)),
}
"""Tiles for 227 KiB and tensor memory, where Hopper's spill 4 to 20 bytes, at width 128 with a soft-cap alone; 128
queries fill a product of `tcgen05`."""


def widths() -> tuple[tuple[int, int], ...]:
    """(width, value width) of the heads that there are tiles for."""
    return tuple(AMPERE)


def tiles(width: int, value_width: int, compute_capability: float | None, kind: Kind) -> Tiles:
    """Tiles for heads of these widths under a mask of this kind; without a GPU, those of Ampere.

    Capabilities 9 and 10 are of data centres and have much shared memory; 8.6, 8.9 and 12 have little.
    """
    if compute_capability is not None and 9.0 <= compute_capability < 12.0:
        return (HOPPER if compute_capability < 10.0 else BLACKWELL)[width, value_width]
    chosen = AMPERE[width, value_width]
    forward = AMPERE_SHORT.get((width, value_width)) if kind in ("window", "packed") else None
    return chosen if forward is None else chosen._replace(forward=forward)


def tiles_of(settings: Settings, q: jax.Array, v: jax.Array) -> Tiles:
    """The tiles for these heads and the device that is traced for."""
    capability = None if settings.interpret else target().compute_capability
    return tiles(q.shape[-1], v.shape[-1], capability, settings.mask.kind)


def pieces(width: int) -> tuple[tuple[int, int], ...]:
    """(start, size) of the pieces of a head whose sizes are powers of two, as Triton's arrays are: 96 is 64 and 32."""
    widths, start = [], 0
    while start < width:
        size = 1 << ((width - start).bit_length() - 1)
        widths.append((start, size))
        start += size
    return tuple(widths)
