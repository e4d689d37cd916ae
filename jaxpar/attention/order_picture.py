"""Draws which rank computes what under each order of a sequence, as one SVG file with light and dark colors.

python -m jaxpar.attention.order_picture > docs/pictures/sequence-orders.svg
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxpar.attention.balance import ORDERS, blocks_per_rank, imbalance, sequence_order, visible_pairs_per_rank
from jaxpar.pages.render import render
from pallas_kernels.masks import Mask

RANKS = 4
DRAWN = 32
"""Tokens of the squares."""
COUNTED = 65536
"""Tokens that the shares of the work are counted on; a drawn token stands for `COUNTED // DRAWN` of them."""
WINDOW = 4
DOCUMENTS = (11, 4, 9, 2, 6)
"""Lengths of the documents, in drawn tokens."""
BLOCK = 512
"""Tokens of the blocks that a kernel computes or skips, in queries and in keys."""

CELL, STRIP = 7, 10
SQUARE = CELL * DRAWN
BAR = 100
"""Pixels: of a token, of the strip of holders, of a square, and of the widest bar."""
LEFT, TOP, HEADING, PANEL, ROW = 32, 156, 40, SQUARE + 152, SQUARE + 68

HOLDERS = {
    "contiguous": f"rank r holds part r of {RANKS}",
    "zigzag": f"rank r holds chunks r and {2 * RANKS - 1}-r of {2 * RANKS}",
    "striped": f"rank r holds tokens r, r+{RANKS}, r+{2 * RANKS}, …",
}

RANK_COLORS = (("#1f78b4", "#4aa3df"), ("#f0a030", "#f2b155"), ("#1a9a76", "#35b591"), ("#c45a9b", "#dd82b9"))
"""Colors of ranks on a light and a dark background: blue, orange, green and purple close to those of Okabe and Ito,
which color-blind people can distinguish."""


def order_picture() -> str:
    """Causal attention of a whole row, of a window and of packed documents: pairs by rank, and each rank's share."""
    scale = COUNTED // DRAWN
    packed = np.repeat(np.arange(1, len(DOCUMENTS) + 1), DOCUMENTS)[None]
    masks = [
        ("Causal", Mask(), None),
        (f"Causal, a window of {WINDOW * scale:,} tokens", Mask(window=WINDOW), None),
        (f"Causal, {len(DOCUMENTS)} packed documents", Mask(segmented=True), packed),
    ]
    columns = [(LEFT + j * PANEL, order, HOLDERS[order]) for j, order in enumerate(ORDERS)]
    rows = [
        (y, name, [_Panel(mask, segments, order, x, y + HEADING).drawn() for x, order, _ in columns])
        for y, (name, mask, segments) in zip(range(TOP, TOP + ROW * len(masks), ROW), masks, strict=True)
    ]
    picture = render(
        "attention/order_picture.svg",
        width=LEFT + len(ORDERS) * PANEL,
        height=TOP + len(masks) * ROW + 8,
        label=f"Work of attention on {RANKS} ranks in three orders of the sequence",
        left=LEFT,
        top=TOP,
        square=SQUARE,
        widest=BAR,
        colors=RANK_COLORS,
        ranks=RANKS,
        counted=f"{COUNTED:,}",
        drawn=DRAWN,
        block=BLOCK,
        columns=columns,
        rows=rows,
    )
    return str(picture)


@dataclass(frozen=True)
class _Panel:
    """The square of one mask in one order, with the bars of the ranks beside it; x and y are its corner."""

    mask: Mask
    segments: np.ndarray | None
    order: str
    x: int
    y: int

    @cached_property
    def holders(self) -> np.ndarray:
        """The rank of each drawn index."""
        holders = np.empty(DRAWN, int)
        holders[sequence_order(self.order, DRAWN, RANKS)] = np.repeat(np.arange(RANKS), DRAWN // RANKS)
        return holders

    @cached_property
    def counted(self) -> tuple[Mask, np.ndarray | None, np.ndarray, int]:
        """The numbers that count the work of `COUNTED` tokens."""
        scale = COUNTED // DRAWN
        window = None if self.mask.window is None else self.mask.window * scale
        segments = None if self.segments is None else np.repeat(self.segments, scale, axis=1)
        order = sequence_order(self.order, COUNTED, RANKS)
        return Mask(self.mask.causal, window, self.mask.segmented), segments, order, RANKS

    def drawn(self) -> dict[str, object]:
        """Variables of the template."""
        top, step = self.y + STRIP + 3, 42
        work = visible_pairs_per_rank(*self.counted)
        over = round(100 * imbalance(work))
        bars = [
            (top + step * rank, f"{share:.1%}", f"{share * BAR / 2 * RANKS:.4g}")  # the widest bar is twice the mean
            for rank, share in enumerate((work / work.sum()).tolist())
        ]
        return {
            "x": self.x,
            "top": top,
            "paths": [self._path(rank, top) for rank in range(RANKS)],
            "bars": bars,
            "bars_x": self.x + SQUARE + 16,
            "end": top + step * RANKS,
            "balance": f"busiest +{over}%" if over else "balanced",
            "unbalanced": over >= 10,
            "blocks": f"{blocks_per_rank(*self.counted, BLOCK, BLOCK).max():,} blocks",
        }

    def _path(self, rank: int, top: int) -> str:
        """The keys that a rank holds, in the strip, and the pairs that it computes."""
        indices = np.flatnonzero(self.holders == rank).tolist()
        strip = "".join(f"M{self.x + CELL * s} {self.y}h{CELL}v{STRIP}h-{CELL}z" for s in indices)
        return strip + "".join(self._keys_of(index, top) for index in indices)

    def _keys_of(self, index: int, top: int) -> str:
        """The kept pairs of a query: keys up to itself, from its window's or its document's first."""
        first = 0 if self.mask.window is None else max(0, index - self.mask.window + 1)
        if self.segments is not None:
            first = max(first, int(np.argmax(self.segments[0] == self.segments[0, index])))
        length = CELL * (index - first + 1)
        return f"M{self.x + CELL * first} {top + CELL * index}h{length}v{CELL}h-{length}z"


if __name__ == "__main__":
    print(order_picture(), end="")
