"""Units of work: parts of the inputs that depend only on the inputs and the size of a unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpar.data.prepare.input.files import Input
from jaxpar.data.prepare.input.tables import open_parquet

SMALLEST, LARGEST, WANTED = 2**20, 2**26, 1024
"""Limits of the default bytes of a unit, which aims at about 1024 units."""


@dataclass(frozen=True)
class Part:
    """A part of an input; see `documents`."""

    input: int
    """Number of the input."""
    first: int
    last: int
    weight: int
    """Approximate bytes of its input, for progress and for the size of units."""


type Unit = tuple[Part, ...]


def plan_units(inputs: list[Input], unit_bytes: int | None, key: str) -> list[Unit]:
    """The units, in the order of the documents.

    Args:
        inputs: the files.
        unit_bytes: bytes of input in a unit; None chooses by the size of the whole input. A compressed file, a text
            file and a row group of a Parquet file are never divided.
        key: column that Parquet files must have.

    Raises:
        UserError: a Parquet file cannot be read, or does not have the column.
    """
    total = sum(file.bytes for file in inputs)
    limit = unit_bytes or min(max(total // WANTED, SMALLEST), LARGEST)
    units: list[Unit] = []
    unit: list[Part] = []
    for part in _parts(inputs, limit, key):
        if unit and sum(other.weight for other in unit) + part.weight > limit:
            units.append(tuple(unit))
            unit = []
        unit.append(part)
    return [*units, tuple(unit)] if unit else units


def _parts(inputs: list[Input], limit: int, key: str) -> Iterator[Part]:
    for index, file in enumerate(inputs):
        if file.format == "parquet" and file.compression is None:
            with open_parquet(file, file.path, key) as parquet:
                sizes = [parquet.metadata.row_group(group).total_byte_size for group in range(parquet.num_row_groups)]
            scale = file.bytes / max(1, sum(sizes))
            for group, size in enumerate(sizes):
                yield Part(index, group, group + 1, round(size * scale))
        elif file.divisible:
            for first in range(0, file.bytes, limit):
                yield Part(index, first, min(first + limit, file.bytes), min(limit, file.bytes - first))
        else:
            yield Part(index, 0, file.bytes, file.bytes)
