"""Draws which rank computes what under each order of a sequence, as one SVG file with light and dark colors.

python -m jaxpar.attention.order_picture > docs/pictures/sequence-orders.svg
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxpar.attention.balance import ORDERS, blocks_per_rank, imbalance, kept_pairs_per_rank, sequence_order
from pallas_kernels.masks import Mask

RANKS = 4
DRAWN = 32
"""Tokens of the squares."""
COUNTED = 65536
"""Tokens that the shares of the work are counted on; a drawn token stands for `COUNTED // DRAWN` of them."""
WINDOW = 4
DOCUMENTS = (11, 4, 9, 2, 6)
"""In drawn tokens."""
BLOCK = 512
"""Tokens of the blocks that a kernel computes or skips, in queries and in keys."""

CELL, STRIP = 7, 10
SQUARE = CELL * DRAWN
BAR = 100
"""Pixels: of a token, of the strip of holders, of a square, and of the widest bar."""
LEFT, TOP, HEADING, PANEL, ROW = 32, 156, 40, SQUARE + 152, SQUARE + 68

TELLS = {
    "contiguous": f"rank r holds part r of {RANKS}",
    "zigzag": f"rank r holds chunks r and {2 * RANKS - 1}-r of {2 * RANKS}",
    "striped": f"rank r holds tokens r, r+{RANKS}, r+{2 * RANKS}, …",
}

_STYLE = """text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: INK; }
.title { font-size: 20px; font-weight: 600; } .head { font-size: 15px; font-weight: 600; }
.dim { fill: DIM; } .red { fill: RED; font-weight: 600; } .n { font-variant-numeric: tabular-nums; }
.end { text-anchor: end; }
.paper { fill: PAPER; } .lane { fill: LANE; } .mean { stroke: INK; stroke-dasharray: 3 3; fill: none; }
.rule { stroke: GRID; }
"""
_LIGHT = {
    **dict(INK="#1d2530", DIM="#5d6775", PAPER="#ffffff", LANE="#f0f3f6", GRID="#d8dee5", RED="#c02f2f"),
    **dict(R0="#1f78b4", R1="#f0a030", R2="#1a9a76", R3="#c45a9b"),
}
_DARK = {
    **dict(INK="#e3e7ec", DIM="#98a3b1", PAPER="#14181e", LANE="#1d242c", GRID="#2d3641", RED="#ff7b72"),
    **dict(R0="#4aa3df", R1="#f2b155", R2="#35b591", R3="#dd82b9"),
}
"""The colors of ranks are blue, orange, green and purple near those of Okabe and Ito, for color-blind people too."""


def order_picture() -> str:
    """Causal attention of a whole row, of a window and of packed documents: pairs by rank, and each rank's share."""
    scale, width = COUNTED // DRAWN, LEFT + len(ORDERS) * PANEL
    packed = np.repeat(np.arange(1, len(DOCUMENTS) + 1), DOCUMENTS)[None]
    rows = [
        ("Causal", Mask(), None),
        (f"Causal, a window of {WINDOW * scale:,} tokens", Mask(window=WINDOW), None),
        (f"Causal, {len(DOCUMENTS)} packed documents", Mask(segmented=True), packed),
    ]
    height = TOP + len(rows) * ROW + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Work of attention on {RANKS} ranks in three orders of the sequence">',
        f"<style>{_themed(_LIGHT)}@media (prefers-color-scheme: dark) {{\n{_themed(_DARK)}}}\n</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        *_head(),
    ]
    for j, order in enumerate(ORDERS):
        x = LEFT + j * PANEL
        lines += [_text(x, TOP - 24, order, "head"), _text(x, TOP - 6, TELLS[order], "dim")]
    for i, (name, mask, segments) in enumerate(rows):
        y = TOP + i * ROW
        lines.append(f'<path class="rule" d="M{LEFT} {y + 6}H{width - LEFT}"/>' + _text(LEFT, y + 28, name, "head"))
        for j, order in enumerate(ORDERS):
            lines += _Panel(mask, segments, order, LEFT + j * PANEL, y + HEADING).draw()
    return "\n".join([*lines, "</svg>"]) + "\n"


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

    def draw(self) -> Iterator[str]:
        top = self.y + STRIP + 3
        yield f'<rect class="lane" x="{self.x}" y="{top}" width="{SQUARE}" height="{SQUARE}"/>'
        for rank in range(RANKS):
            indices = np.flatnonzero(self.holders == rank).tolist()
            strip = "".join(f"M{self.x + CELL * s} {self.y}h{CELL}v{STRIP}h-{CELL}z" for s in indices)
            pairs = "".join(self._keys_of(index, top) for index in indices)
            yield f'<path class="r{rank}" d="{strip}{pairs}"/>'
        yield from self._bars(self.x + SQUARE + 16, top)

    def _keys_of(self, index: int, top: int) -> str:
        """The kept pairs of a query: keys up to itself, from its window's or its document's first."""
        first = 0 if self.mask.window is None else max(0, index - self.mask.window + 1)
        if self.segments is not None:
            first = max(first, int(np.argmax(self.segments[0] == self.segments[0, index])))
        length = CELL * (index - first + 1)
        return f"M{self.x + CELL * first} {top + CELL * index}h{length}v{CELL}h-{length}z"

    def _bars(self, x: int, top: int) -> Iterator[str]:
        work = kept_pairs_per_rank(*self.counted)
        blocks = blocks_per_rank(*self.counted, BLOCK, BLOCK)
        step, to_pixels = 42, BAR / 2 * RANKS  # the widest bar is twice the mean
        for rank, share in enumerate((work / work.sum()).tolist()):
            y = top + step * rank
            yield _text(x, y + 12, f"rank {rank}", "dim") + _text(x + BAR, y + 12, f"{share:.1%}", "n end")
            yield f'<rect class="r{rank}" x="{x}" y="{y + 18}" width="{share * to_pixels:.4g}" height="12"/>'
        end = top + step * RANKS
        yield f'<path class="mean" d="M{x + BAR / 2:g} {top + 12}V{end - 8}"/>'
        over = round(100 * imbalance(work))
        said = f"busiest +{over}%" if over else "balanced"
        yield _text(x, end + 14, said, "red" if over >= 10 else "dim")
        yield _text(x, end + 34, f"{blocks.max():,} blocks", "dim")


def _head() -> Iterator[str]:
    yield _text(LEFT, 36, f"Who computes what: attention on {RANKS} ranks, in three orders of the sequence", "title")
    yield _text(
        LEFT, 60,
        "Squares: queries down and keys across, as the text runs. A pair has the color of the rank that holds its "
        "query; the strip on top tells who holds each key.", "dim",
    )  # fmt: skip
    yield _text(
        LEFT, 80,
        f"Bars: the share of all pairs that a rank computes, counted on {COUNTED:,} tokens of which the squares show "
        f"{DRAWN}; the dashed line is the mean.", "dim",
    )  # fmt: skip
    yield _text(
        LEFT, 100,
        "Under them: the busiest rank's pairs against the mean, and how many blocks of "
        f"{BLOCK} by {BLOCK} pairs it computes where a kernel skips those that the mask empties.", "dim",
    )  # fmt: skip


def _themed(theme: dict[str, str]) -> str:
    style = _STYLE + "".join(f".r{rank} {{ fill: R{rank}; }}\n" for rank in range(RANKS))
    for name, value in theme.items():
        style = style.replace(name, value)
    return style


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{text}</text>'


if __name__ == "__main__":
    print(order_picture(), end="")
