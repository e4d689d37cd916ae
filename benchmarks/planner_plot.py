"""Scatter plots of predicted against measured speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jaxpar.planner.validate import Judged

BAND = 0.1
"""The share around the measurement that is shaded."""


def scatter(parts: Mapping[str, Sequence[Judged]], path: Path) -> None:
    """One panel per way to be judged; both axes logarithmic, coloured by source."""
    sources = list(dict.fromkeys(one.run.source for part in parts.values() for one in part))
    color = dict(zip(sources, plt.get_cmap("tab10").colors, strict=False))  # pyright: ignore[reportAttributeAccessIssue]
    figure, panels = plt.subplots(1, len(parts), figsize=(4.2 * len(parts), 4.6), sharex=True, sharey=True)
    ends = [8.0, 2e5]
    for panel, (name, part) in zip(panels, parts.items(), strict=True):
        panel.fill_between(ends, [e * (1 - BAND) for e in ends], [e * (1 + BAND) for e in ends], color="0.9", lw=0)
        panel.plot(ends, ends, color="0.5", lw=0.8)
        for source in sources:
            own = [one for one in part if one.run.source == source and one.time and one.run.tokens_per_s_per_gpu]
            panel.scatter(
                [one.run.tokens_per_s_per_gpu for one in own],
                [one.time.tokens_per_s_per_gpu for one in own if one.time],
                s=13, color=color[source], alpha=0.75, linewidths=0, label=source,
            )  # fmt: skip
        panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=name, xlabel="measured tokens/s/GPU")
        panel.set_aspect("equal")
    panels[0].set_ylabel("predicted tokens/s/GPU")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(sources), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)
