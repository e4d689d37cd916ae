"""Published runs, predicted and compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.layer_case import LayerCase
from jaxpar.memory.layer_shape import LayerShape
from jaxpar.memory.pipeline_offload import (
    interleaved_units,
    memory_bytes,
    rank_parameters,
    state_bytes,
    working_bytes,
)
from jaxpar.planner.evidence.errors import Judged, Report, report
from jaxpar.planner.evidence.published import Run, read_rows
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.kept import kept_bytes
from jaxpar.planner.step_time.model import step_time
from jaxpar.units import GIB

DATA = Path(__file__).parent / "data"
PUBLISHED = DATA / "published.csv"
"""The runs that the time model was fitted to."""
HELD_OUT = DATA / "held_out.csv"
"""Runs that nothing was fitted to."""
EXPERTS = DATA / "experts.csv"
"""Runs of models with experts, to which nothing was fitted either."""

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to this, times the tensor ranks."""


def validate(path: Path | str, hardware: Callable[[Run], HardwareModel | None] | None = None) -> Report:
    """Predict every run of a CSV file and compare; rows that cannot be timed are listed with the reason.

    Args:
        path: a file with the columns of `published.COLUMNS`.
        hardware: parameters to use instead of those fitted for the GPU of a run.

    Raises:
        UserError: the file cannot be read, a column is missing, or no row can be compared; one sentence.
    """
    found, refused = read_rows(Path(path))
    runs = [run for run in found if run.tokens_per_s_per_gpu is not None or run.peak_gib is not None]
    if not runs:
        why = f"; {refused[0].row}: {refused[0].why}" if refused else ""
        raise UserError(f"{named(Path(path))}: no row has a time or a peak memory to compare with{why}")
    return report((judge(run, hardware(run) if hardware else None) for run in runs), refused)


def judge(run: Run, hardware: HardwareModel | None = None) -> Judged:
    """Predict a run."""
    layout, time = run.layouts[0], None
    if run.tokens_per_s_per_gpu is not None:
        timed = [
            (step_time(run.model, run.sequence, run.batch, one, run.cluster, run.mechanisms, hardware), one)
            for one in run.layouts
        ]
        time, layout = min(timed, key=lambda pair: pair[0].seconds)
    memory = None if run.peak_gib is None else published_memory(run, layout) / GIB
    return Judged(run, layout, time, memory)


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
