"""`loss.png`: training loss, validation loss and the baseline over the steps."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from pathlib import Path

from jaxpar.observe.events import Listener, RunInfo, StepRecord, Summary
from jaxpar.observe.files import write_atomically
from jaxpar.observe.writers.jsonl import METRICS_FILE, read_metrics

PLOT_FILE = "loss.png"

Points = list[tuple[int, float]]


@dataclass
class Curves:
    """The content of the plot, losses in nats per token."""

    title: str = ""
    train: Points = field(default_factory=list)
    validation: Points = field(default_factory=list)
    baseline: float | None = None


class LossPlot(Listener):
    """Draws `loss.png` with each evaluation and at the end; after a restore it starts from `metrics.jsonl`."""

    def __init__(self) -> None:
        self._folder = Path()
        self.curves = Curves()

    def start(self, info: RunInfo) -> None:
        self._folder = Path(info.folder)
        self.curves = Curves(title=self._folder.name, baseline=info.baseline_loss)
        metrics = self._folder / METRICS_FILE
        if metrics.exists():
            for values in read_metrics(metrics, before=info.first_step):
                self._add(self.curves.train, values["step"], values.get("loss"))
                self._add(self.curves.validation, values["step"], values.get("eval_loss"))

    def step(self, record: StepRecord) -> None:
        self._add(self.curves.train, record.step, record.loss)

    def evaluation(self, step: int, loss: float, baseline: float | None) -> None:
        self.curves.baseline = baseline
        self._add(self.curves.validation, step, loss)
        self._draw()  # here, where its time is not counted as a step's

    def rewound(self, step: int) -> None:
        for points in (self.curves.train, self.curves.validation):
            points[:] = [point for point in points if point[0] <= step]

    def end(self, summary: Summary) -> None:
        self._draw()

    def _draw(self) -> None:
        write_atomically(self._folder / PLOT_FILE, draw(self.curves))

    @staticmethod
    def _add(points: Points, step: int, loss: object) -> None:
        """A loss may come from a file, which may hold anything."""
        if isinstance(loss, int | float) and math.isfinite(loss):
            points.append((step, loss))


def draw(curves: Curves) -> bytes:
    """The plot as a PNG of 1280 x 720 pixels."""
    # Figure and canvas directly: pyplot would keep global state and might look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if curves.train:
        marker = "o" if len(curves.train) == 1 else None  # a line of one point would not be visible
        axes.plot(
            *zip(*curves.train, strict=True), color="#4c78a8", linewidth=1.3, marker=marker, markersize=4, label="train"
        )
    if curves.validation:
        step, loss = curves.validation[-1]
        label = f"validation, {loss:.4f} after step {step}"
        axes.plot(*zip(*curves.validation, strict=True), color="#d9532c", marker="o", markersize=4, label=label)
    if curves.baseline is not None:
        axes.axhline(
            curves.baseline, color="#555555", linewidth=1, linestyle="--", label=f"bigram, {curves.baseline:.4f}"
        )
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=curves.title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(steps := {step for step, _ in (*curves.train, *curves.validation)}) == 1:
        axes.set_xlim(min(steps) - 1, max(steps) + 1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
