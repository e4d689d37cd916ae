"""Errors of predictions against published runs, per source and overall.

Errors are of tokens/s/GPU and of peak memory, absolute and relative to the measurement. Overall figures are means over
sources, because two sources hold most rows. Rank correlation (Spearman) is within the runs of one model and sequence
length, where there are three or more. Regret is how much slower the layout predicted to be best is than the fastest
measured one, among the layouts of one model, batch and cluster; the median over such groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.memory.closed_forms import CLOSED_FORMS
from jaxpar.memory.layer_shape import LayerShape
from jaxpar.memory.pipeline_offload import (
    interleaved_units,
    memory_bytes,
    rank_parameters,
    state_bytes,
    working_bytes,
)
from jaxpar.planner.evidence.published import Run, read_runs
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.model import StepTime, step_time
from jaxpar.units import GIB, percent

DATA = Path(__file__).parent / "data"
PUBLISHED = DATA / "published.csv"
"""Part of the runs that the time model was fitted to."""
HELD_OUT = DATA / "held_out.csv"
"""Runs that nothing was fitted to."""

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to this, times the tensor ranks."""


@dataclass(frozen=True)
class Judged:
    """A published run and what was predicted for it."""

    run: Run
    layout: Layout
    """The layout; where part of it was not published, the variant predicted to be fastest."""
    time: StepTime | None
    """None where only memory was measured."""
    memory_gib: float | None
    """None where it was not measured."""

    @property
    def error(self) -> float | None:
        """Relative error of tokens/s/GPU; above 0 where the run was slower than predicted."""
        measured = self.run.tokens_per_s_per_gpu
        return None if self.time is None or measured is None else self.time.tokens_per_s_per_gpu / measured - 1

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory."""
        measured = self.run.peak_gib
        return None if self.memory_gib is None or measured is None else self.memory_gib / measured - 1


@dataclass(frozen=True)
class Errors:
    """Errors of a source, or means over sources; None where nothing of the kind was measured."""

    rows: int
    median_error: float | None
    p90_error: float | None
    memory_rows: int
    memory_median_error: float | None
    rank_correlation: float | None
    regret: float | None


@dataclass(frozen=True)
class Report:
    """The result of a validation."""

    overall: Errors
    sources: Mapping[str, Errors]
    assumed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By source: what its rows leave open, the value assumed for it, and in how many rows."""

    def as_json(self) -> dict[str, Any]:
        """`overall` and `sources`, each with the fields of `Errors`; and `assumed`."""
        sources = {name: vars(errors) for name, errors in self.sources.items()}
        return {"overall": vars(self.overall), "sources": sources, "assumed": self.assumed}

    def lines(self) -> list[str]:
        """A table, and under it what rows leave open."""
        return [*self.table(), *self.assumptions()]

    def assumptions(self) -> list[str]:
        """What rows leave open, a line for each source; nothing where nothing is."""
        if not self.assumed:
            return []
        each = lambda found: "; ".join(f"{what} ({rows})" for what, rows in found.items())
        return ["", "Assumed for what rows leave open:"] + [f"  {k}: {each(v)}" for k, v in self.assumed.items()]

    def table(self) -> list[str]:
        """A line for each source, and one for all."""
        head = ("source", "rows", "median", "p90", "memory rows", "median", "rank", "regret")
        rows = [(name, errors) for name, errors in self.sources.items()] + [("mean over sources", self.overall)]
        cells = [head, *((name, *_cells(errors)) for name, errors in rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        padded = lambda row: [cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(row)]
        return ["  ".join(padded(zip(row, widths, strict=True))) for row in cells]


def validate(path: Path | str, hardware: Callable[[Run], HardwareModel | None] | None = None) -> Report:
    """Predict every run of a CSV file and compare.

    Args:
        path: a file with the columns of `published.COLUMNS`.
        hardware: parameters to use instead of those fitted for the GPU of a run.

    Raises:
        UserError: the file cannot be read, or a column or a number in it is wrong; one sentence.
    """
    runs = [run for run in read_runs(Path(path)) if run.tokens_per_s_per_gpu is not None or run.peak_gib is not None]
    if not runs:
        raise UserError(f"{path}: no row has a time or a peak memory to compare with")
    return report(judge(run, hardware(run) if hardware else None) for run in runs)


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
    shape = LayerShape(model, layout.microbatch, run.sequence, layout.context, layout.tensor)
    multiple = VOCAB_MULTIPLE * layout.tensor
    vocab_rows = -(-(model.vocab or 0) // multiple) * multiple
    parameters = rank_parameters(shape, model.layers // layout.pipe, vocab_rows)
    sharded = layout.data * layout.context if layout.zero else 1
    static = state_bytes(parameters, sharded_over=sharded) + working_bytes(shape)
    layers = model.layers // (layout.pipe * layout.virtual_stages)
    assert isinstance(layout.remat, str), "published layouts name a preset"
    units = interleaved_units(layout.pipe, layout.virtual_stages) if layout.virtual_stages > 1 else layout.pipe
    return memory_bytes(static, layers * CLOSED_FORMS[layout.remat](shape), units, layout.offload_fraction)


def report(judged: Iterable[Judged]) -> Report:
    """The errors of predictions, by source."""
    by_source: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        by_source[one.run.source].append(one)
    sources = {name: _errors(rows) for name, rows in by_source.items()}
    opened = {name: dict(Counter(what for row in rows for what in row.run.assumed)) for name, rows in by_source.items()}
    each = list(sources.values())
    overall = Errors(
        rows=sum(errors.rows for errors in each),
        median_error=_mean(errors.median_error for errors in each),
        p90_error=_mean(errors.p90_error for errors in each),
        memory_rows=sum(errors.memory_rows for errors in each),
        memory_median_error=_mean(errors.memory_median_error for errors in each),
        rank_correlation=_mean(errors.rank_correlation for errors in each),
        regret=_mean(errors.regret for errors in each),
    )
    return Report(overall, sources, {name: found for name, found in opened.items() if found})


def _errors(rows: Sequence[Judged]) -> Errors:
    errors = [abs(error) for row in rows if (error := row.error) is not None]
    memory = [abs(error) for row in rows if (error := row.memory_error) is not None]
    return Errors(
        rows=len(errors),
        median_error=median(errors) if errors else None,
        p90_error=float(np.percentile(errors, 90)) if errors else None,
        memory_rows=len(memory),
        memory_median_error=median(memory) if memory else None,
        rank_correlation=_over_groups(rows, _same_model, 3, _spearman, fmean),
        regret=_over_groups(rows, lambda row: row.run.group, 2, _regret, median),
    )


def _same_model(row: Judged) -> Hashable:
    return (*row.run.group[:1], row.run.sequence, row.run.shape)


def _over_groups(
    rows: Sequence[Judged],
    key: Callable[[Judged], Hashable],
    least: int,
    measure: Callable[[list[float], list[float]], float],
    middle: Callable[[list[float]], float],
) -> float | None:
    """`measure` of (predicted, measured) speeds of every group with `least` rows or more, and their `middle`."""
    groups: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.time is not None and row.run.tokens_per_s_per_gpu is not None:
            groups[key(row)].append((row.time.tokens_per_s_per_gpu, row.run.tokens_per_s_per_gpu))
    found = [measure([p for p, _ in group], [m for _, m in group]) for group in groups.values() if len(group) >= least]
    return middle(found) if found else None


def _spearman(predicted: list[float], measured: list[float]) -> float:
    """Rank correlation; 0 where all values of one side are equal."""
    a, b = _ranks(predicted), _ranks(measured)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: list[float]) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    array = np.array(values)
    return np.array([(array < value).sum() + ((array == value).sum() - 1) / 2 for value in array])


def _regret(predicted: list[float], measured: list[float]) -> float:
    """The share of the best measured speed that the layout predicted to be best does not reach."""
    return 1 - measured[int(np.argmax(predicted))] / max(measured)


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _cells(errors: Errors) -> tuple[str, ...]:
    shown = lambda value: "-" if value is None else percent(value)
    rank = "-" if errors.rank_correlation is None else f"{errors.rank_correlation:.2f}"
    return (
        str(errors.rows), shown(errors.median_error), shown(errors.p90_error), str(errors.memory_rows),
        shown(errors.memory_median_error), rank, shown(errors.regret),
    )  # fmt: skip
