"""Seconds of the output head with its loss, and of what ranks send of the embedding, for one microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from jaxpar.config.schema import ModelConfig
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.layer_messages import LayerMessages
from jaxpar.cost.messages import Network, Ring
from jaxpar.cost.operations import Device
from jaxpar.cost.work import ACCUMULATED, Work
from jaxpar.hardware.sources import assumed, chosen, derived
from jaxpar.layers.inputs.input import input_class
from jaxpar.mesh.placements import TABLES

ID_BYTES: Annotated[float, derived("int32")] = 4.0
"""Bytes of a token's row number."""
PADDED: Annotated[int, assumed("a run pads the vocabulary to model.vocab_multiple, not to this for each rank")] = 64
"""Multiple to which a rank's part of the vocabulary is padded: odd ones would be slow (`operations.ALIGNED`)."""


PASSES: Annotated[float, derived("float32 read three times, 16 bits written, read and written turned")] = 18.0
"""Bytes that a tile's loss moves for each logit: its maximum, its sum, and its gradient, of which both products read
an order of their own."""
FUSED: Annotated[float, assumed("16 bits read twice, the gradient written, by kernels of a loss in one")] = 12.0
"""The same of software whose logits are whole, both ways."""
TILE_BYTES: Annotated[int, chosen("the float32 logits that are in memory at a time")] = 2**30
"""Largest logits of a tile of tokens."""
FILLED: Annotated[int, derived("XLA:GPU's pass cublas-pad-for-gemms")] = 8
"""Multiple to which XLA fills the tokens of a tile."""


def tiles_of_logits(tokens: int, columns: int) -> int:
    """Tiles of so many tokens whose logits are computed one after the other (`model.tiled_loss`)."""
    return -(-4 * tokens * columns // TILE_BYTES)


def head_time(
    case: LayerCase, vocab: int, device: Device, network: Network, ends: int = 1, tiled: bool = True
) -> tuple[Work, Work]:
    """Output head and loss, forward and backward: the head's matmul, and the logits in memory.

    A frozen head and embedding have no gradients. Of `ends` pipeline ranks that share the vocabulary each has a part of
    the logits, of all tokens. Without `tiled` logits are whole, as other software has them.
    """
    columns = -(-vocab // (case.tensor * ends * PADDED)) * PADDED
    item, tiles = case.item, tiles_of_logits(case.tokens, columns) if tiled else 1
    tokens = -(-case.tokens // (tiles * FILLED)) * FILLED
    forward = tiles * device.matmul(tokens, columns, case.embed, 1, 4, item)
    inward = tiles * device.matmul(tokens, case.embed, columns, 1, item, item)
    weight = 0.0 if case.frozen else tiles * device.matmul(case.embed, columns, tokens, 1, ACCUMULATED, item)
    messages = LayerMessages(case, network)
    embed = device.bytes_seconds(case.between * 4 + case.between * (0 if case.frozen else 10))
    other = (device.bytes_seconds((PASSES if tiled else FUSED) * float(case.tokens) * columns) + embed) / 2
    return Work(forward, 0.0, other, messages.half), Work(inward + weight, 0.0, other, messages.half)


class Lookup(NamedTuple):
    """The rows that a rank looks up in a table of the embedding in a microbatch."""

    tokens: int
    entries: int
    """Entries of the table, or of a tensor rank's part of it."""


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
