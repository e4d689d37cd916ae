"""Scatter plots of the errors of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jaxpar.planner.evidence.judged import Judged

BAND = 0.1
"""The share around the measurement that is shaded."""

LIMIT = 60
"""Percent at which errors are clipped, so that the others can be distinguished."""


def scatter(parts: Mapping[str, Sequence[Judged]], path: Path) -> None:
    """One panel per way to be judged: error over measured speed, coloured by source."""
    sources = list(dict.fromkeys(one.run.source for part in parts.values() for one in part))
    color = dict(zip(sources, plt.get_cmap("tab20").colors, strict=False))  # pyright: ignore[reportAttributeAccessIssue]
    figure, grid = plt.subplots(2, 2, figsize=(11, 7.5), sharex=True, sharey=True)
    for panel, (name, part) in zip(grid.flat, parts.items(), strict=True):
        panel.axhspan(-100 * BAND, 100 * BAND, color="0.92", lw=0)
        panel.axhline(0, color="0.5", lw=0.8)
        for source in sources:
            own = [one for one in part if one.run.source == source and one.error is not None]
            speeds = [one.run.tokens_per_s_per_gpu for one in own]
            errors = [min(LIMIT, 100 * (one.error or 0)) for one in own]
            panel.scatter(speeds, errors, s=16, color=color[source], alpha=0.75, linewidths=0, label=source)
        panel.set(xscale="log", xlim=(8, 2e5), ylim=(-30, LIMIT + 3), title=name)
    for panel in grid[1]:
        panel.set_xlabel("measured tokens/s/GPU")
    for panel in grid[:, 0]:
        panel.set_ylabel(f"error, % (at most {LIMIT} drawn)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=100)
    plt.close(figure)
