"""Messages of ranks that share the embedding: its table and the table's gradient, or the rows of their tokens.

The table is stored in parts of each row (`jaxpar.mesh.placements.SHARD_ORDER`). To look up tokens, a rank may gather
the table. Or it gets the ids of all ranks' tokens, looks up its part of their rows, and the ranks exchange these; in
the backward they exchange cotangents, which each adds to its part of the gradient. This is the same sum in another
order. Of few tokens it takes less time than the table; between hosts each rank sends rows over its own card, where the
members of a host share the way of a table.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from jaxpar.config import Config, UserError
from jaxpar.config.counting import padded_vocab
from jaxpar.config.plan import AxisSizes, Choice, Plan
from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.head import lookups, of_rows, of_tables
from jaxpar.cost.messages import network_of
from jaxpar.distributed.devices import Device
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layers.declaration.columns import side_columns
from jaxpar.pages.units import seconds


def embedding_messages(
    config: Config, axes: AxisSizes, device: Device, rows: int, cluster: Cluster | None
) -> Choice[Literal["table", "rows"]]:
    """The meaning of `parallel.overlap.embedding_messages` of a resolved configuration on devices like `device`, with
    so many rows in a microbatch on each, by the links of `cluster`, if they are known.

    Raises `UserError` for `rows` where that is impossible.
    """
    asked, impossible = config.parallel.overlap.embedding_messages, _impossible(config, axes)
    if asked == "rows":
        if impossible is not None:
            raise UserError(
                f"parallel.overlap.embedding_messages: rows are not exchanged, because {impossible}; expected auto or "
                "table"
            )
        return Choice("rows", "named by parallel.overlap.embedding_messages")
    if _nothing_sent(config, axes) is not None:
        return Choice("table")
    if asked == "table":
        return Choice("table", "named by parallel.overlap.embedding_messages")
    if impossible is not None:
        return Choice("table", impossible)
    if config.model.tied:
        return Choice("table", "the head gathers the tied table in any case, and no program was compared")
    if device.platform == "cpu":
        return Choice("table", "links of CPU devices have no speed")
    if cluster is None:
        return Choice("table", "the speeds of these GPUs' links are unknown")
    rows_s, table_s = _seconds(config, axes, rows, cluster)
    words = f"{seconds(rows_s)} of messages in a microbatch, and {seconds(table_s)} by the table"
    return Choice("rows" if rows_s < table_s else "table", words)


def check_embedding_messages(plan: Plan, config: Config) -> None:
    """Raise `UserError` if a plan exchanges rows that the configuration cannot exchange."""
    if plan.embedding_messages.name == "rows" and (why := _impossible(config, plan.axes)) is not None:
        raise UserError(f"plan.embedding_messages: rows are not exchanged, because {why}; expected table")


def _nothing_sent(config: Config, axes: AxisSizes) -> str | None:
    """The reason why no microbatch sends anything of the embedding; None if it does."""
    if not lookups(config.model, padded_vocab(config.model), 1, axes.tensor):
        return f"model.input: {config.model.input} looks up no rows"
    zero = config.parallel.zero
    if zero < 2 or axes.shards == 1:
        return "no rank has a part of the embedding or of its gradient (parallel.zero 2 or 3, over several ranks)"
    if axes.pipe > 1:
        return "a pipeline gathers the embedding once a step"
    if zero == 2 and (why := adaptation_of(config).frozen_by):
        return f"each rank has the embedding whole (parallel.zero is 2), and it is frozen ({why})"
    return None


def _impossible(config: Config, axes: AxisSizes) -> str | None:
    """The reason why rows are not exchanged; None if they may be."""
    parallel = config.parallel
    if (why := _nothing_sent(config, axes)) is not None:
        return why
    if config.model.embed % axes.shards:
        return f"rows of {config.model.embed} elements (model.embed) do not divide by {axes.shards} ranks"
    if (inputs := side_columns(config.model).inputs) % axes.shards:
        return f"rows of {inputs} elements, those of all layers, do not divide by {axes.shards} ranks"
    quantized = parallel.quantized.weights is not None or parallel.quantized.gradients is not None
    if quantized or parallel.hpz is not None:
        return "quantized messages and hpZ shards are of full tables"
    return None


def _seconds(config: Config, axes: AxisSizes, rows: int, cluster: Cluster) -> tuple[float, float]:
    """Seconds of a microbatch's messages: rows exchanged, and the table gathered and its gradient scattered."""
    model, precision = config.model, config.precision
    forward, trained = config.parallel.zero == 3, not adaptation_of(config).frozen_by
    compute, gradient = (jnp.dtype(dtype).itemsize for dtype in (precision.compute, precision.gradient))
    storage = jnp.dtype(precision.storage or precision.compute).itemsize
    ring = network_of(cluster, hardware_of(cluster.gpu)).ring(axes.shards, axes.tensor)
    tokens = rows * config.data.sequence_length // axes.context
    looked_up = lookups(model, padded_vocab(model), tokens, axes.tensor)
    rows_s = of_rows(ring, looked_up, model.embed, compute, times=forward + trained)
    gathered, scattered = storage if forward else 0.0, gradient if trained else 0.0
    return rows_s, of_tables(ring, looked_up, model.embed, gathered, scattered)
