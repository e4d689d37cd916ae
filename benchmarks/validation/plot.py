"""Plots of the errors of predictions: by run, and by source beside those of the naive guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.validation.judged import Judged
from benchmarks.validation.leave_out import LeftOut

BAND = 0.1
"""The share around the measurement that is shaded."""

LIMIT = 60
"""Percent at which errors are clipped, so that the others can be distinguished."""


type Bars = Mapping[str, Mapping[str, float]]
"""Medians of absolute errors: by way to be judged, by source."""

BARS = {
    "one MFU per GPU": "0.65", "unseen software": "tab:blue", "one MFU, one run measured": "0.4",
    "unseen software, one run measured": "tab:cyan",
}  # fmt: skip
"""Colors of the bars."""


def bars_of(found: LeftOut) -> Bars:
    """Medians by source, and their mean: the naive guess and the prediction, without and with one run measured."""
    middle = lambda errors: median(map(abs, errors))
    unseen = {name: [one.error for one in own if one.error is not None] for name, own in found.generations.items()}
    beside = {name: [one.error for one in own] for name, own in found.anchored.items()}
    each = zip(BARS, (found.naive, unseen, found.naive_anchored, beside), strict=True)
    bars = {name: {source: middle(own[source]) for source in sorted(found.sources)} for name, own in each}
    return {name: {**own, "mean": fmean(own.values())} for name, own in bars.items()}


def scatter(parts: Mapping[str, Sequence[Judged]], bars: Bars, path: Path) -> None:
    """One panel per way to be judged: error over measured speed, coloured by source; below them the bars of sources."""
    sources = list(dict.fromkeys(one.run.source for part in parts.values() for one in part))
    color = dict(zip(sources, plt.get_cmap("tab20").colors, strict=False))  # pyright: ignore[reportAttributeAccessIssue]
    figure = plt.figure(figsize=(11, 11.5))
    halves = figure.add_gridspec(2, 1, height_ratios=(7.5, 4))
    above, below = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    grid = above.subplots(2, 2, sharex=True, sharey=True)
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
    above.legend(handles, labels, loc="lower center", ncols=5, frameon=False, fontsize=9)
    above.subplots_adjust(left=0.07, right=0.98, top=0.95, bottom=0.2, wspace=0.06, hspace=0.2)
    panel = below.subplots()
    for place, (name, own) in enumerate(bars.items()):
        at = [source + 0.2 * (place - 1.5) for source in range(len(own))]
        panel.bar(at, [100 * error for error in own.values()], width=0.19, color=BARS[name], label=name)
    panel.set_xticks(range(len(next(iter(bars.values())))), [*next(iter(bars.values()))], rotation=25, ha="right")
    panel.set(ylabel="median error, %", title="systems that nothing was fitted to, beside the naive guess")
    panel.legend(frameon=False, fontsize=9, ncols=2)
    below.subplots_adjust(left=0.07, right=0.98, top=0.9, bottom=0.28)
    figure.savefig(path, dpi=100)
    plt.close(figure)
