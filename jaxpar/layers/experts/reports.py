"""Names of what layers of experts report, and the metrics that follow from it."""

from __future__ import annotations

from collections.abc import Mapping

from jaxpar.runtime.passes import AUXILIARY_LOSS

ROUTED_TOKENS, LOAD, RANK_LOAD, ENTROPY, DROPPED, OVERFLOWS = (
    "expert_tokens", "expert_load", "expert_rank_load", "expert_entropy", "expert_dropped", "expert_overflows",
)  # fmt: skip
"""Sums over tokens and layers: of 1; of the load of the fullest expert, relative to the mean; of that of the fullest
expert rank; of the entropy of the routing; of assignments that no expert has computed; of 1 where an exchange took more
than one round."""

_PREFIX, _OF_LAYER = "expert_", "expert_load_of_layer_"


def expert_metrics(report: Mapping[str, float]) -> dict[str, float]:
    """By the names of metrics; nothing for a model without experts.

    `load`, `rank_load`, `entropy` and `overflows` are means over layers and microbatches; `dropped` counts assignments
    per token and layer, and `clusters` and `merged` what their names say; `auxiliary_loss` is what is added to the mean
    loss of a token, over all layers.
    """
    if not report.get(ROUTED_TOKENS):
        return {}
    names = [name for name in report if name.startswith(_PREFIX) and not name.startswith(_OF_LAYER)]
    tokens = float(report[ROUTED_TOKENS])
    means = {name.removeprefix(_PREFIX): float(report[name]) / tokens for name in names if name != ROUTED_TOKENS}
    return means | {"auxiliary_loss": float(report[AUXILIARY_LOSS])}


def layer_report(layer: int) -> str:
    """`LOAD` of one layer of the model."""
    return f"{_OF_LAYER}{layer}"


def reports_of(layers: int) -> tuple[str, ...]:
    """What a layer of experts reports, in a model of so many layers."""
    names = (AUXILIARY_LOSS, ROUTED_TOKENS, LOAD, RANK_LOAD, ENTROPY, DROPPED, OVERFLOWS)
    return (*names, *map(layer_report, range(layers)))


def is_of_experts(name: str) -> bool:
    """Whether a report is one of experts."""
    return name == AUXILIARY_LOSS or name.startswith(_PREFIX)


def layer_loads(report: Mapping[str, float]) -> dict[str, float]:
    """Number of a layer with experts to the load of its fullest expert, averaged over microbatches."""
    # A layer without experts has reported nothing, and every other one at least 1 for each token.
    sums = {name: float(value) for name, value in report.items() if name.startswith(_OF_LAYER)}
    found = {name.removeprefix(_OF_LAYER): value for name, value in sums.items() if value}
    tokens = float(report.get(ROUTED_TOKENS, 0))
    return {layer: value * len(found) / tokens for layer, value in found.items()} if tokens else {}
