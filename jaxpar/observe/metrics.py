"""Display of the metrics that the blocks of a model report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A number that a block reports, averaged over tokens and layers (`jaxpar.runtime.passes.Report`)."""

    title: str
    """Title of its chart."""
    unit: Literal["nats", "plain"] = "plain"
    """Format of its values in the chart."""
    column: str = ""
    """Title of its column on the console; without one it is in the line under the heading."""
    least: float = 0.0
    """Value of the palest color of its map by layer and step."""


METRICS: dict[str, Metric] = {
    "experts.load": Metric("Load of the fullest expert, relative to the mean", column="load", least=1.0),
    "experts.rank_load": Metric("Load of the fullest rank of experts, relative to the mean"),
    "experts.entropy": Metric("Entropy of the router's logits, nats", "nats"),
    "experts.dropped": Metric("Dropped choices per token and layer"),
    "experts.overflows": Metric("Share of exchanges of tokens that took more than one round"),
    "experts.clusters": Metric("Clusters sent per token and layer"),
    "experts.merged": Metric("Buckets of equal hashes that share a cluster, per token and layer"),
}
"""Labels by `<block>.<value>`; a value that is not listed is drawn under this name. Other blocks add theirs."""

SET = "eval_loss_"
"""Names of metrics that are the loss on a validation set begin with this, and end with its name."""


def metric_of(name: str) -> Metric:
    """The entry of a value, or one with its name as the title."""
    return METRICS.get(name) or Metric(name.replace(".", ": ").replace("_", " "))


def least_of(feature: str) -> float:
    """The value of the palest color of the map of a feature `<block>_<value>`; 0 of one that is not listed."""
    return next((metric.least for name, metric in METRICS.items() if name.replace(".", "_") == feature), 0.0)
