"""The plot of a learning-rate sweep."""

from __future__ import annotations

import io
from collections.abc import Sequence

SHOWN_ABOVE = 0.15
"""Losses are shown up to this share of the fall above the first one: a divergence would flatten all else."""


def draw_sweep(
    rates: Sequence[float],
    losses: Sequence[float],
    smooth: Sequence[float],
    *,
    suggested: float | None,
    lowest: float | None,
    title: str,
) -> bytes:
    """Loss against rate, with the suggested rate marked, as a PNG of 1280 x 720 pixels."""
    # Figure and canvas directly: pyplot would keep global state and might look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(rates, losses, color="#4c78a8", linewidth=0.8, alpha=0.45, label="loss of each step")
    axes.plot(rates, smooth, color="#4c78a8", linewidth=2, label="smoothed")
    if lowest is not None:
        axes.axvline(lowest, color="#555555", linewidth=1, linestyle=":", label=f"lowest, at {lowest:.2g}")
    if suggested is not None:
        axes.axvline(suggested, color="#d9532c", linewidth=1.5, label=f"suggested: {suggested:.2g}")
    if smooth:
        top, bottom = smooth[0], min(smooth)
        margin = SHOWN_ABOVE * (top - bottom) or 0.1
        axes.set_ylim(min(bottom, min(losses)) - margin / 2, top + margin)
    axes.set(xlabel="optimizer.learning_rate", ylabel="loss (nats per token)", title=title, xscale="log")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
