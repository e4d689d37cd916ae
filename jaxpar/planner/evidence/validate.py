"""Published runs, predicted and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, geometric_mean

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.mechanisms import Mechanisms
from jaxpar.memory.layer_shape import LayerShape
from jaxpar.memory.pipeline_offload import (
    interleaved_units,
    memory_bytes,
    rank_parameters,
    state_bytes,
    working_bytes,
)
from jaxpar.planner.evidence.errors import Report, report
from jaxpar.planner.evidence.judged import Judged
from jaxpar.planner.evidence.published import Run, read_rows, read_runs
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.kept import kept_bytes
from jaxpar.planner.step_time.model import StepTime, step_time
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
    judged = [judge(run, hardware(run) if hardware else None) for run in runs]
    return report(judged, refused, _published())


@cache
def _published() -> Sequence[Run]:
    """The runs of the repository, for naive guesses beside predictions."""
    return read_runs(PUBLISHED)


def judge(run: Run, hardware: HardwareModel | None = None) -> Judged:
    """Predict a run; of software that is not known, as the mean of what it may be."""
    memory_of = lambda layout: None if run.peak_gib is None else published_memory(run, layout) / GIB
    if run.tokens_per_s_per_gpu is None:
        return Judged(run, run.layouts[0], None, memory_of(run.layouts[0]))
    time, layout, each = predict(run, hardware)
    return Judged(run, layout, time, memory_of(layout), each)


def predict(run: Run, hardware: HardwareModel | None = None) -> tuple[StepTime, Layout, dict[str, float]]:
    """The step of a run, its layout, which is the fastest where part of it is left open, and the seconds by what its
    software may be."""
    timed = {does: _fastest(run, does, hardware) for does in {run.mechanisms, *run.candidates.values()}}
    each = {name: timed[does][0] for name, does in run.candidates.items()}
    seconds = {name: time.seconds for name, time in each.items()}
    return mean_of(list(each.values())), timed[run.mechanisms][1], seconds


def _fastest(run: Run, does: Mechanisms, hardware: HardwareModel | None) -> tuple[StepTime, Layout]:
    """The fastest of the layouts that a run may have had."""
    timed = (
        (step_time(run.model, run.sequence, run.batch, one, run.cluster, does, hardware), one) for one in run.layouts
    )
    return min(timed, key=lambda pair: pair[0].seconds)


def mean_of(times: Sequence[StepTime]) -> StepTime:
    """The geometric mean of steps; its parts are those of their mean."""
    if len(times) == 1:
        return times[0]
    factor = geometric_mean([one.seconds for one in times]) / fmean(one.seconds for one in times)
    parts = {name: factor * fmean(one.breakdown[name] for one in times) for name in times[0].breakdown}
    speed, mfu = (geometric_mean([getattr(one, name) for one in times]) for name in ("tokens_per_s_per_gpu", "mfu"))
    return StepTime(sum(parts.values()), parts, speed, mfu)


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
