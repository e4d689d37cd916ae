"""The size of each batch of a run: `data.batch_ramp`, and after it `data.batch_size`."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from jaxpar.config.schema import DataConfig


class Stretch(NamedTuple):
    """Batches of one size."""

    batch: int
    """Index of the first batch."""
    example: int
    """Its first row, of all rows of the run."""
    rows: int
    """Rows of each batch."""


def stretches(data: DataConfig) -> list[Stretch]:
    """The sizes of batches in order; the last one is for all that follow."""
    parts, batch, example = [], 0, 0
    for part in data.batch_ramp:
        parts.append(Stretch(batch, example, part.size))
        batches = part.steps or -(-int(part.tokens or 0) // (part.size * data.sequence_length))
        batch, example = batch + batches, example + batches * part.size
    return [*parts, Stretch(batch, example, data.batch_size)]


def stretch_of(data: DataConfig, batch: int) -> Stretch:
    """The stretch of a batch."""
    return [one for one in stretches(data) if one.batch <= batch][-1]


def examples_before(data: DataConfig, batch: int) -> int:
    """Rows of all batches before one: its first row."""
    stretch = stretch_of(data, batch)
    return stretch.example + (batch - stretch.batch) * stretch.rows


def ramp_words(data: DataConfig) -> str:
    """The stretches before the last in words; empty without any."""
    return "; ".join(f"{one.rows} rows to step {other.batch:,}" for one, other in pairwise(stretches(data)))
