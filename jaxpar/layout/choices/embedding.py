"""What ranks that share the embedding send: its table and the table's gradient, or the rows of their tokens.

The table is stored in parts of each row (`jaxpar.mesh.placements.SHARD_ORDER`). To look up tokens, a rank may gather
the table. Or it gets the ids of all ranks' tokens, looks up its part of their rows, and the ranks exchange these; in
the backward they exchange cotangents, which each adds to its part of the gradient. This is the same sum in another
order, and less than the table where a microbatch has fewer tokens than the vocabulary has entries.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxpar.config import Config, UserError
from jaxpar.config.counting import padded_vocab
from jaxpar.config.plan import AxisSizes, Plan
from jaxpar.distributed.devices import Device
from jaxpar.units import count


class EmbeddingMessages(NamedTuple):
    """The choice, by its names in a plan."""

    embedding_messages: Literal["table", "rows"]
    embedding_messages_reason: str
    """Nothing where neither is sent in a microbatch."""


def embedding_messages(config: Config, axes: AxisSizes, device: Device, rows: int) -> EmbeddingMessages:
    """What `parallel.embedding_messages` of a resolved configuration means on devices like `device`, with so many rows
    in a microbatch on each.

    Raises `UserError` for `rows` where that is impossible.
    """
    asked, impossible = config.parallel.embedding_messages, _impossible(config, axes)
    if asked == "rows":
        if impossible is not None:
            raise UserError(
                f"parallel.embedding_messages: rows are not exchanged, because {impossible}; expected auto or table"
            )
        return EmbeddingMessages("rows", "named by parallel.embedding_messages")
    if _nothing_sent(axes, config.parallel.zero) is not None:
        return EmbeddingMessages("table", "")
    if asked == "table":
        return EmbeddingMessages("table", "named by parallel.embedding_messages")
    if impossible is not None:
        return EmbeddingMessages("table", impossible)
    if device.platform == "cpu":
        return EmbeddingMessages("table", "CPU devices overlap nothing")
    tokens, entries, fewer = _compared(config, axes, rows)
    words = f"of {count(tokens)} tokens in a microbatch, and {count(entries)} entries"
    return EmbeddingMessages("rows" if fewer else "table", words)


def check_embedding_messages(plan: Plan, config: Config) -> None:
    """Raise `UserError` if a plan exchanges rows that the configuration cannot exchange."""
    if plan.embedding_messages == "rows" and (why := _impossible(config, plan.axes)) is not None:
        raise UserError(f"plan.embedding_messages: rows are not exchanged, because {why}; expected table")


def _shards(axes: AxisSizes) -> int:
    return axes.fsdp * axes.expert * axes.context


def _nothing_sent(axes: AxisSizes, zero: int) -> str | None:
    """Why no microbatch sends anything of the embedding; None if it does."""
    if zero < 2 or _shards(axes) == 1:
        return "no rank has a part of the embedding or of its gradient (parallel.zero 2 or 3, over several ranks)"
    if axes.pipe > 1:
        return "a pipeline gathers the embedding once a step"
    return None


def _impossible(config: Config, axes: AxisSizes) -> str | None:
    """Why rows are not exchanged; None if they may be."""
    parallel, precision = config.parallel, config.precision
    if (why := _nothing_sent(axes, parallel.zero)) is not None:
        return why
    if config.model.embed % _shards(axes):
        return f"rows of {config.model.embed} elements (model.embed) do not divide by {_shards(axes)} ranks"
    coded = precision.weight_wire is not None or precision.gradient_wire is not None
    if coded or parallel.collectives == "hierarchical" or parallel.secondary_shard is not None:
        return "codes, messages in two levels and secondary shards are of whole tables"
    return None


def _compared(config: Config, axes: AxisSizes, rows: int) -> tuple[int, int, bool]:
    """(tokens of a microbatch on a device, entries of the table on it, whether rows are fewer bytes)."""
    model, precision = config.model, config.precision
    compute, gradient = (jnp.dtype(dtype).itemsize for dtype in (precision.compute, precision.gradient))
    storage = jnp.dtype(precision.storage or precision.compute).itemsize
    tokens, entries = rows * config.data.sequence_length // axes.context, padded_vocab(model) // axes.tensor
    looked_up, whole = tokens, entries
    if model.position == "learned":
        looked_up, whole = tokens + tokens // axes.tensor, entries + model.max_positions
    forward = config.parallel.zero == 3
    return tokens, entries, looked_up * (compute + forward * compute) < whole * (gradient + forward * storage)
