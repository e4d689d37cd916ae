"""The screen: the plan, a progress bar with a line per logged step, and a list of the output files at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from jaxpar.config.paths import RUN_CONFIG
from jaxpar.observe.events import Anomaly, Listener, RunInfo, StepRecord, Summary
from jaxpar.observe.metrics import SET, metric_of
from jaxpar.pages.units import GIB, clock, count, percent, plain, seconds, size, three_digits

FILES = (
    (RUN_CONFIG, "the configuration, every field resolved"),
    ("plan.json", "the layout"),
    ("metrics.jsonl", "an object per logged step; as a page: python -m jaxpar.report {folder}"),
    ("events.jsonl", "starts, saves and messages"),
    ("environment.json", "versions, devices, the command"),
    ("summary.json", "the numbers above"),
    ("loss.png", "the loss as a picture"),
    ("wandb", "runs of Weights & Biases; send offline ones: wandb sync {path}/offline-run-*"),
    ("tensorboard", "events: tensorboard --logdir {path}"),
    ("checkpoints", "weights and optimizer state"),
    ("profile", "traces of the JAX profiler"),
)
"""Files of a run's folder, with a description."""

COLUMNS: dict[str, tuple[str, int, Callable[[float], str]]] = {
    "reward_accuracy": ("accuracy", 9, percent),
    "reward_margin": ("margin", 7, lambda value: f"{value:.2f}"),
    "reward": ("reward", 8, lambda value: f"{value:.3f}"),
    "answer_tokens": ("length", 8, lambda value: f"{value:.1f}"),
}
"""Metrics that have a column: its title, width and format."""

VALIDATION: dict[str, tuple[str, Callable[[float], str]]] = {
    "eval_reward_accuracy": ("accuracy", percent),
    "eval_reward_margin": ("margin", lambda value: f"{value:.3f}"),
    "eval_success": ("success", percent),
    "eval_reward": ("reward", lambda value: f"{value:.3f}"),
}
"""Metrics of an evaluation that have a line of their own."""

HEADER_EVERY = 25
PLAIN_WIDTH = 120


class ConsoleView(Listener):
    """Prints a run with rich.

    The plan is a few lines, or with `verbose` a table of every decision. Without a terminal it prints plain lines: no
    progress bar, no control characters, no wrapping. It goes last among several listeners, so that the files that it
    lists at the end exist.
    """

    def __init__(
        self, console: Console | None = None, now: Callable[[], datetime] = datetime.now, *, verbose: bool = False
    ) -> None:
        if console is None:
            # Without a terminal rich assumes 80 columns, too few for the plan's reasons.
            console = Console(markup=False) if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, markup=False)
        self._console, self._now, self._verbose = console, now, verbose
        self._steps: int | None = None
        self._folder = Path()
        self._titles: list[str] = []
        self._lines_since_header = 0
        self._progress: Progress | None = None

    def start(self, info: RunInfo) -> None:
        self._folder, self._steps = Path(info.folder), info.steps
        if self._verbose:
            self._console.print(self._table(info.rows, ("plan", "value", "why")))
        else:
            self._console.print(self._table(info.brief, ("plan", "")))
            self._line("Every decision with its reason: --verbose, or the page by python -m jaxpar.report", "dim")
        if info.baseline_loss is not None:
            self._line(f"Baseline: a bigram model, with a validation loss of {info.baseline_loss:.4f} nats per token")
        if 1 < info.first_step <= info.steps:
            self._line(f"Continuing with step {info.first_step} of {info.steps}")
        if self._console.is_terminal:
            self._start_progress("compiling", info.steps, info.first_step - 1)

    def _start_progress(self, description: str, total: int, completed: int) -> None:
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=self._console, refresh_per_second=2, transient=True)
        self._progress.add_task(description, total=total, completed=completed)
        self._progress.start()

    def progress(self, text: str, done: int, total: int) -> None:
        if done == 0:
            self.message(text)
            if self._console.is_terminal:
                self._start_progress("", total, 0)
        elif self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done)
        if done == total:
            self.close()

    def step(self, record: StepRecord) -> None:
        columns = _columns(record, self._clock_time(), self._steps)
        titles = [title for title, _, _ in columns]
        if titles != self._titles or self._lines_since_header >= HEADER_EVERY:
            self._titles, self._lines_since_header = titles, 0
            self._line("".join(f"{title:>{width}}" for title, width, _ in columns), "bold")
        self._line("".join(f"{value:>{width}}" for _, width, value in columns))
        if self._lines_since_header == 0 or record.eval_loss is not None:
            for block, reported in (record.blocks or {}).items():
                if values := _without_columns(block, reported):
                    self._line(f"{'':>16}  {block}: {values}", "dim")
        self._lines_since_header += 1
        metrics = record.metrics or {}
        values = [f"{words} {shown(metrics[name])}" for name, (words, shown) in VALIDATION.items() if name in metrics]
        values += [f"{name.removeprefix(SET)} {value:.4f}" for name, value in metrics.items() if name.startswith(SET)]
        if values:
            self._line(f"{'':>16}  validation {', '.join(values)}", "cyan")
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description="training", completed=record.step)

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        self._line(f"{self._clock_time()}{step:>8}  validation loss {loss:.4f}{_against(loss, baseline)}", "cyan")

    def saved(self, step: int, path: str) -> None:
        folder = Path(path)
        shown = folder.relative_to(self._folder) if folder.is_relative_to(self._folder) else folder
        self._line(f"{self._clock_time()}{step:>8}  saved {shown}", "dim")

    def message(self, text: str) -> None:
        self._line(f"- {self._printable(text)}", "bold")

    def anomaly(self, anomaly: Anomaly) -> None:
        self._line(f"! {self._printable(anomaly.text)}", "bold yellow")

    def sample(self, prompt: str, continuation: str) -> None:
        for title, text in (("Validation prompt", prompt), ("Continued by the model", continuation)):
            self._line(f"\n{title}", "bold")
            for line in self._printable(text).splitlines():
                self._line(f"  | {line}")

    def end(self, summary: Summary) -> None:
        self.close()
        self._line(f"\nTrained to step {summary.steps} on {count(summary.tokens)} tokens", "bold")
        self._line(
            f"  time      {clock(summary.train_seconds)} in steps, {seconds(summary.steady_step_seconds)} each; "
            f"compilation {seconds(summary.compile_seconds)}, first step {seconds(summary.first_step_seconds)}"
        )
        self._line(f"  loss      {_loss(summary.loss)} in training")
        if summary.eval_loss is not None:
            against = _against(summary.eval_loss, summary.baseline_loss)
            self._line(f"            {summary.eval_loss:.4f} validation{against}")
        if summary.empty_steps:
            steps = "1 step" if summary.empty_steps == 1 else f"{summary.empty_steps:,} steps"
            self._line(f"            none in {steps}, without a token that the loss counts: they changed nothing")
        for source, epochs in (summary.epochs or {}).items():
            self._line(f"  data      {plain(epochs, 3)} epochs of {source}")
        if summary.peak_bytes is not None:
            whose = "on the fullest device" if summary.memory_kind == "device" else "of host memory in this process"
            self._line(f"  memory    peak {size(summary.peak_bytes)} {whose}")
        if summary.predicted_bytes is not None:
            self._line(f"            predicted {size(summary.predicted_bytes)} per device")
        self._line(f"\nWhere things are: {self._folder}", "bold")
        for name, what in FILES:
            if (self._folder / name).exists():
                self._line(f"  {name:<18}{what.format(path=self._folder / name, folder=self._folder)}")

    def _clock_time(self) -> str:
        return f"{self._now():%H:%M:%S}"

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _table(self, rows: Sequence[tuple[str, ...]], heads: tuple[str, ...]) -> Table:
        # Box characters are for people at a terminal, not for log files.
        table = Table(box=box.SIMPLE_HEAD if self._console.is_terminal else None, pad_edge=False)
        for head, style in zip(heads, ("", "cyan", "dim"), strict=False):
            table.add_column(head, style=style, no_wrap=not style, overflow="fold")
        for row in rows:
            table.add_row(*(Text(self._printable(cell)) for cell in row))
        return table

    def _line(self, text: str, style: str = "") -> None:
        # Text, not a string: rich would read parts of a source code sample as markup.
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _printable(self, text: str) -> str:
        """Text that cannot move the cursor and that the terminal's encoding can represent."""
        shown = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
        return shown.encode(self._console.encoding, "replace").decode(self._console.encoding)


def _columns(record: StepRecord, time: str, steps: int | None) -> list[tuple[str, int, str]]:
    """(title, width, value) of a step's line; at most 112 characters in all. `steps` are those of the whole run."""
    columns = [("time", 8, time), ("step", 8, str(record.step))]
    if steps is not None:
        columns.append(("done", 7, percent(record.step, steps)))
    columns += [
        ("loss", 8, _loss(record.loss)),
        ("grad norm", 10, _norm(record.grad_norm)),
        ("lr", 9, f"{record.learning_rate:.2e}"),
    ]
    if record.matrix_learning_rate is not None:
        columns.append(("matrix lr", 10, f"{record.matrix_learning_rate:.1e}"))
    metrics = record.metrics or {}
    of_loss = [(*column[:2], column[2](metrics[name])) for name, column in COLUMNS.items() if name in metrics]
    columns += of_loss
    columns += [
        ("s/step", 9, three_digits(record.step_time_s)),
        ("tokens/s", 9, count(record.tokens_per_second)),
    ]
    of_blocks = {
        f"{block}.{name}": value
        for block, reported in (record.blocks or {}).items()
        for name, value in reported.items()
    }
    shown = {column: value for name, value in of_blocks.items() if (column := metric_of(name).column)}
    columns += [(column, len(column) + 1, f"{value:.2f}") for column, value in shown.items()]
    if not shown and not of_loss:  # There is no room for both.
        columns.append(("/device", 8, count(record.tokens_per_second_per_device)))
    if record.mfu is not None:
        columns.append(("MFU", 6, percent(record.mfu)))
    if record.memory_bytes is not None:
        columns.append(_memory(record, record.memory_bytes))
    return [*columns, ("ETA", 9, clock(record.eta_s))]


def _without_columns(block: str, reported: Mapping[str, float]) -> str:
    """The values of a block that have no column."""
    names = [name for name in reported if not metric_of(f"{block}.{name}").column]
    return ", ".join(f"{name.replace('_', ' ')} {reported[name]:.3g}" for name in names)


def _memory(record: StepRecord, in_use: int) -> tuple[str, int, str]:
    """Memory in use, peak and limit of the fullest device, or of this process on the host."""
    peak, limit = record.memory_peak_bytes, record.memory_limit_bytes
    if record.memory_kind == "host":
        return "host mem", 13, size(in_use)
    if peak is None or limit is None:
        return "memory", 13, size(in_use)
    used = [f"{value / GIB:.{1 if value < 100 * GIB else 0}f}" for value in (in_use, peak)]
    return "GiB/peak/max", 13, f"{used[0]}/{used[1]}/{limit / GIB:.0f}"


def _loss(loss: float | None) -> str:
    return "none" if loss is None else f"{loss:.4f}"


def _against(loss: float, baseline: float | None) -> str:
    if baseline is None:
        return ""
    side = "below" if loss < baseline else "above"
    return f", {abs(baseline - loss):.4f} {side} the bigram baseline of {baseline:.4f}"


def _norm(value: float) -> str:
    return f"{value:.3f}" if 0.001 <= value < 1000 else f"{value:.2e}"
