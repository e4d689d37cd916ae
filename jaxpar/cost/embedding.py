"""Seconds of what ranks that share the embedding send in a microbatch: its tables, or rows of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxpar.config.schema import ModelConfig
from jaxpar.cost.messages import Ring
from jaxpar.layers.inputs.input import input_class
from jaxpar.mesh.placements import TABLES

ID_BYTES = 4.0
"""Of a token's row in a table."""


class Lookup(NamedTuple):
    """What a rank looks up in a table of the embedding in a microbatch."""

    tokens: int
    entries: int
    """Of the table, or of a tensor rank's part of it."""


def lookups(model: ModelConfig, vocab: int, tokens: int, tensor: int) -> list[Lookup]:
    """The lookups in each table of the model's input, for so many tokens on a rank: tensor ranks share the vocabulary,
    and the positions of a row."""
    tables = [spec for spec in input_class(model).declare(model).values() if spec.axes[0] in TABLES]
    return [
        Lookup(tokens, vocab // tensor) if spec.axes[0] == "vocab" else Lookup(tokens // tensor, spec.shape[0])
        for spec in tables
    ]


def of_rows(ring: Ring, looked_up: Sequence[Lookup], embed: int, item: float, *, times: int) -> float:
    """Where rows of `item` bytes an element are exchanged, `times` of forward and backward: all ranks get the ids of
    all tokens first."""
    ids = sum(ring.gather(ID_BYTES * one.tokens * ring.ranks) for one in looked_up)
    return ids + times * sum(ring.exchange(float(one.tokens * embed * item)) for one in looked_up)


def of_tables(ring: Ring, looked_up: Sequence[Lookup], embed: int, gathered: float, scattered: float) -> float:
    """Where tables are gathered, and their gradients scattered, at so many bytes an element; 0 of what stays."""
    sizes = [float(one.entries * embed) for one in looked_up]
    return sum(ring.gather(size * gathered) + ring.gather(size * scattered) for size in sizes)
