"""The key figures of a run, one row each, by which two runs are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from jaxpar.config.ramp import examples_before
from jaxpar.observe.report.curves import points
from jaxpar.observe.report.run_record import RunRecord, number
from jaxpar.pages.units import count, percent, plain, seconds, size


@dataclass(frozen=True)
class Figure:
    """A number of a run."""

    name: str
    value: Callable[[RunRecord], float | None]
    words: Callable[[float], str]
    """Formats it, or a difference of two."""
    relative: bool = True
    """Whether a difference is also shown in percent."""


def nats(value: float) -> str:
    """Formats a loss in nats."""
    return f"{value:.4f}"


def integer(value: float) -> str:
    """A number of steps."""
    return f"{value:,.0f}"


def last(name: str) -> Callable[[RunRecord], float | None]:
    """The last finite value of a curve."""
    return lambda run: curve[-1][1] if (curve := points(run, name)) else None


def least(name: str) -> Callable[[RunRecord], float | None]:
    """The least value of a curve."""
    return lambda run: min((value for _, value in points(run, name)), default=None)


def summary_figure(name: str) -> Callable[[RunRecord], float | None]:
    """A number of `summary.json`."""
    return lambda run: number(run.summary, name)


def tokens(run: RunRecord) -> float | None:
    """Tokens trained on: the summary's, or those of the logged steps, padding included."""
    known = number(run.summary, "tokens")
    if known is not None or run.config is None:
        return known
    return float(examples_before(run.config.data, run.last_step) * run.config.data.sequence_length)


def last_evaluation(run: RunRecord) -> float | None:
    """The step of the last validation loss, if the run went on after it; otherwise None."""
    evaluated = points(run, "eval_loss")
    return float(evaluated[-1][0]) if evaluated and evaluated[-1][0] < run.last_step else None


def gain(run: RunRecord) -> float | None:
    """The baseline loss less the last validation loss."""
    loss, baseline = last("eval_loss")(run), run.baseline
    return None if loss is None or baseline is None else baseline - loss


def usual(name: str) -> Callable[[RunRecord], float | None]:
    """The median of a curve, without its first point, which has the first step in it."""
    return lambda run: median(values) if (values := [value for _, value in points(run, name)][1:]) else None


def host_share(run: RunRecord) -> float | None:
    """Share of a steady step in which the host neither dispatched nor waited."""
    host, step = number(run.summary, "host_step_seconds"), number(run.summary, "steady_step_seconds")
    return None if host is None or not step else host / step


def memory_words(run: RunRecord) -> str:
    """The measured memory: of devices or of the host."""
    kind = run.summary.get("memory_kind") or (run.metrics[-1].get("memory_kind") if run.metrics else None)
    return "host" if kind == "host" else "device"


FIGURES = (
    Figure("steps", lambda run: float(run.last_step), integer),
    Figure("tokens", tokens, count),
    Figure("training loss, last", last("loss"), nats),
    Figure("validation loss, last", last("eval_loss"), nats),
    Figure("step of the last validation loss", last_evaluation, integer),
    Figure("validation loss, best", least("eval_loss"), nats),
    Figure("baseline", lambda run: run.baseline, nats),
    Figure("baseline less validation loss", gain, nats, relative=False),
    Figure("gradient norm, last", last("grad_norm"), plain),
    Figure("skipped steps", last("skipped_steps"), integer),
    Figure("steps without a token that the loss counts", last("empty_steps"), integer),
    Figure("time of a step, median", usual("step_time_s"), seconds),
    Figure("tokens per second, median", usual("tokens_per_second"), count),
    Figure("model FLOPs utilisation of the 16-bit peak, median", usual("mfu"), percent, relative=False),
    Figure("compilation", summary_figure("compile_seconds"), seconds),
    Figure("time in steps", summary_figure("train_seconds"), seconds),
    Figure("memory, peak", summary_figure("peak_bytes"), size),
    Figure("memory per device, predicted", summary_figure("predicted_bytes"), size),
)


def figure_rows(runs: list[RunRecord]) -> list[tuple[str, ...]]:
    """(name, a value per run, and of two runs the difference) for each figure that a run has."""
    rows = []
    for figure in [*FIGURES, *epoch_figures(runs)]:
        values = [figure.value(run) for run in runs]
        if all(value is None for value in values):
            continue
        shown = ["" if value is None else figure.words(value) for value in values]
        rows.append((figure.name, *shown, *([_difference(figure, *values)] if len(values) == 2 else [])))
    return rows


def epoch_figures(runs: list[RunRecord]) -> list[Figure]:
    """The epochs of each data source."""
    sources = dict.fromkeys(source for run in runs for source in _epochs(run))
    return [
        Figure(f"epochs of {source}", lambda run, source=source: number(_epochs(run), source), plain)
        for source in sources
    ]


def _epochs(run: RunRecord) -> dict[str, object]:
    """Epochs from the summary, or else from the last logged step."""
    epochs = run.summary.get("epochs") or (run.metrics[-1].get("epochs") if run.metrics else None)
    return epochs if isinstance(epochs, dict) else {}


def _difference(figure: Figure, first: float | None, second: float | None) -> str:
    """The difference of the second value from the first, as text."""
    if first is None or second is None:
        return ""
    change = second - first
    if change == 0:
        return "the same"
    sign = "+" if change > 0 else "-"
    relative = f" ({sign}{percent(abs(change), abs(first))})" if first and figure.relative else ""
    return f"{sign}{figure.words(abs(change))}{relative}"
