"""Bytes that the exchange of tokens with experts sends in a step, by its formula."""

from __future__ import annotations

import jax.numpy as jnp

from jaxpar.config.kinds import kind_counts, kind_models
from jaxpar.layers.experts.messages import row_bytes_of_ways, rows_sent
from jaxpar.layout.step_layout import StepLayout


def sent_bytes(layout: StepLayout) -> float:
    """Of a device, in one round of each exchange, averaged over pipeline ranks; without what is recomputed."""
    plan, model, axes = layout.plan, layout.config.model, layout.plan.axes
    data = layout.config.data
    ranks = axes.replica * axes.fsdp * axes.expert * axes.context * axes.tensor
    tokens, item = data.batch_size * data.sequence_length / ranks, jnp.dtype(plan.dtypes.compute).itemsize
    total, layers = 0.0, kind_counts(model)
    for kind, own in kind_models(model).items():
        if own.experts is not None:
            chosen = plan.experts[kind]
            one = rows_sent(chosen.exchange.name, own.experts, chosen.capacity, axes.expert, axes.tensor)
            total += layers[kind] * one * row_bytes_of_ways(model.embed, item, chosen.sent_dtype)
    return total * tokens / axes.pipe
