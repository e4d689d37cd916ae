"""Layouts of any software, predicted after runs of the same software on the same kind of GPU were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.validation.aligned import aligned
from benchmarks.validation.judged import UNKNOWN, Judged
from benchmarks.validation.posterior import posterior
from benchmarks.validation.predict import judge, predict
from benchmarks.validation.published import Refused, Run, read_rows
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.planner.measured_runs.anchors import measured_file
from jaxpar.planner.step_time.interval import KNOWN
from jaxpar.units import percent, seconds


@dataclass(frozen=True)
class AfterRuns:
    """A row that was predicted."""

    run: Run
    runs: int
    """Measured runs of its software on its kind of GPU; of 0 nothing follows."""
    like: str
    """The kind of software that these are most like, where theirs is not known; else nothing."""
    step_time_s: float
    interval_s: tuple[float, float]
    """Holds four of five measured steps."""

    @property
    def error(self) -> float | None:
        """Above 0 where the run took more time than predicted; None where it was not measured."""
        measured = self.run.seconds
        return None if measured is None else measured / self.step_time_s - 1

    def as_json(self) -> dict[str, Any]:
        """By name."""
        software, gpu = self.run.system
        return {
            "source": self.run.source, "row": self.run.row, "software": software, "gpu": gpu, "runs": self.runs,
            "like": self.like or None, "step_time_s": self.step_time_s, "interval_s": list(self.interval_s),
            "measured_s": self.run.seconds, "error": self.error,
        }  # fmt: skip


def after_runs(data: Path, measured: Path) -> tuple[list[AfterRuns], list[Refused]]:
    """The rows of a file, predicted after the runs of another; a run that is in both, by its source and
    row, is no measurement of itself.

    Args:
        data: rows in the schema of published runs; they need no time.
        measured: rows of the same schema, or the folder of a run, of which those with a time count.

    Returns:
        The rows, and those of both files that cannot be timed.

    Raises:
        UserError: a file cannot be read, or has no row to predict, or none with a time.
    """
    measured = measured_file(measured)
    rows, refused = read_rows(data, "--data ")
    runs, refused_runs = read_rows(measured, "--measured ")
    anchors = [judge(run) for run in runs if run.tokens_per_s_per_gpu is not None]
    why = lambda left: f"; {left[0].row}: {left[0].why}" if left else ""
    if not rows:
        raise UserError(f"--data {named(data)}: no row can be timed{why(refused)}")
    if not anchors:
        raise UserError(f"--measured {named(measured)}: no row has a time{why(refused_runs)}")
    same = measured.resolve() == data.resolve()
    return [_after(run, anchors) for run in rows], [*refused, *([] if same else refused_runs)]


def _after(run: Run, anchors: Sequence[Judged]) -> AfterRuns:
    time, _, each = predict(run)
    known = run.software is not None
    other = lambda one: (one.source, one.row) != (run.source, run.row)
    own = [one for one in anchors if one.run.system == run.system and other(one.run)]
    if not own:
        spread = KNOWN if known else UNKNOWN
        return AfterRuns(run, 0, "", time.seconds, spread.interval(time.seconds))
    found = posterior([one.errors for one in own], KNOWN)
    predicted, spread = found.seconds(each), found.spread(each)
    return AfterRuns(run, len(own), "" if known else found.likeliest, predicted, spread.interval(predicted))


def lines(rows: Sequence[AfterRuns], refused: Sequence[Refused]) -> list[str]:
    """A table, what it was predicted from, and the rows that have no time."""
    head = ("row", "software", "GPU", "runs", "most like", "step", "80%", "measured", "error")
    table = [head, *map(_cells, rows)]
    without = sum(not one.runs for one in rows)
    notes = ["", "runs: measured ones of that software on that GPU, without the row itself; errors above 0: slower."]
    if without:
        notes.append(f"Without such a run: {without}; these are predicted without one.")
    left = [f"  {one.row}: {one.why}" for one in refused]
    return [*aligned(table), *notes, *(["", "Rows that cannot be timed:", *left] if left else [])]


def _cells(one: AfterRuns) -> tuple[str, ...]:
    software, gpu = one.run.system
    error, took = one.error, one.run.seconds
    least, most = one.interval_s
    return (
        f"{one.run.source} {one.run.row}", software, gpu, str(one.runs), one.like or "-", seconds(one.step_time_s),
        f"{seconds(least)} to {seconds(most)}", "-" if took is None else seconds(took),
        "-" if error is None else f"{'+' if error >= 0 else '-'}{percent(abs(error))}",
    )  # fmt: skip
