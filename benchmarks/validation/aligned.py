"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = lambda row: [cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(row)]
    return ["  ".join(padded(zip(row, widths, strict=True))) for row in rows]
