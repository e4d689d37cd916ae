"""Predictions of published runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, geometric_mean

from benchmarks.validation.judged import Judged
from benchmarks.validation.published import Run
from benchmarks.validation.published_memory import published_memory
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.model import StepTime
from jaxpar.units import GIB


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
    timed = {does: run.fastest(does, hardware) for does in {run.mechanisms, *run.candidates.values()}}
    each = {name: timed[does][0] for name, does in run.candidates.items()}
    seconds = {name: time.seconds for name, time in each.items()}
    return mean_of(list(each.values())), timed[run.mechanisms][1], seconds


def mean_of(times: Sequence[StepTime]) -> StepTime:
    """The geometric mean of steps; its parts are those of their mean."""
    if len(times) == 1:
        return times[0]
    factor = geometric_mean([one.seconds for one in times]) / fmean(one.seconds for one in times)
    parts = {name: factor * fmean(one.breakdown[name] for one in times) for name in times[0].breakdown}
    speed, mfu = (geometric_mean([getattr(one, name) for one in times]) for name in ("tokens_per_s_per_gpu", "mfu"))
    return StepTime(sum(parts.values()), parts, speed, mfu)
