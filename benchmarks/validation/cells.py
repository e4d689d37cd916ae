"""The cells of a row of a published run: numbers, switches, and what a wrong one is refused with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted

MOST = 10**9
"""The largest value of any count."""

SWITCHES = ("gated_mlp", "tied_embeddings")
"""Columns whose cells are 0 or 1."""


@dataclass(frozen=True)
class Cells:
    """A row's numbers; raises an error that names the cell for what is not a number."""

    row: Mapping[str, str]
    place: str

    def check(self) -> None:
        """Raise `UserError` for a row of another length, or a switch that is neither 0 nor 1."""
        if None in self.row or None in self.row.values():
            raise UserError(f"{self.place}: expected as many cells as columns")
        for column in SWITCHES:
            if self.row[column] not in ("", "0", "1"):
                raise UserError(f"{self.place}: {column}: expected 0, 1 or nothing, got {quoted(self.row[column])}")

    def number(self, column: str) -> float:
        """A number that is not negative."""
        try:
            value = float(self.row[column])
        except (TypeError, ValueError):
            raise UserError(f"{self.place}: {column}: expected a number, got {quoted(self.row[column])}") from None
        if not 0 <= value < float("inf"):
            raise UserError(f"{self.place}: {column}: expected 0 or more, got {value:g}")
        return value

    def given(self, column: str) -> bool:
        """Whether the file has the column and the row a value in it."""
        return bool(self.row.get(column))

    def positive(self, column: str) -> float:
        """A number above 0."""
        value = self.number(column)
        if value == 0:
            raise UserError(f"{self.place}: {column}: expected a number above 0, got 0")
        return value

    def whole(self, column: str, usual: int | None = None, least: int = 1, most: int = MOST) -> int:
        """A whole number from `least` to `most`; `usual` where the cell is empty."""
        if usual is not None and not self.row[column]:
            return usual
        value = self.number(column)
        if value != int(value) or not least <= value <= most:
            raise UserError(f"{self.place}: {column}: expected a whole number from {least} to {most:,}, got {value:g}")
        return int(value)
