"""Peak memory of published systems, by Megatron's closed form."""

from __future__ import annotations

from benchmarks.validation.published import Run
from jaxpar.cost.layer_case import LayerCase
from jaxpar.memory.layer_shape import LayerShape
from jaxpar.memory.pipeline_offload import (
    interleaved_units,
    memory_bytes,
    rank_parameters,
    state_bytes,
    working_bytes,
)
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.kept import kept_bytes

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to this, times the tensor ranks."""


def published_memory(run: Run, layout: Layout) -> float:
    """Peak bytes of the first pipeline rank of a system with a distributed optimizer, from shapes alone.

    Weights in 16 bits, gradients, master weights and moments in float32, what the units in flight keep, and the
    working set of a layer (`memory.pipeline_offload`).
    """
    model = run.model
    shape = LayerShape(
        model, layout.microbatch, run.sequence, layout.context, layout.tensor, expert=layout.expert,
        capacity=layout.expert_capacity,
    )  # fmt: skip
    multiple = VOCAB_MULTIPLE * layout.tensor
    vocab_rows = -(-(model.vocab or 0) // multiple) * multiple
    parameters = rank_parameters(shape, model.layers // layout.pipe, vocab_rows)
    sharded = layout.data * layout.context if layout.zero else 1
    static = state_bytes(parameters, sharded_over=sharded) + working_bytes(shape)
    layers = model.layers // (layout.pipe * layout.virtual_stages)
    case = LayerCase(shape, layout.context_strategy, layout.sequence_parallel)
    units = interleaved_units(layout.pipe, layout.virtual_stages) if layout.virtual_stages > 1 else layout.pipe
    return memory_bytes(static, layers * kept_bytes(case, layout.remat), units, layout.offload_fraction)
