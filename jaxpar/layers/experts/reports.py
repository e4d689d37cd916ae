"""Names of what layers of experts report, and the metrics that follow from it."""

from __future__ import annotations

from collections.abc import Mapping

from jaxpar.layers.report import AUXILIARY_LOSS

TOKENS, LOAD, RANK_LOAD, ENTROPY, DROPPED, OVERFLOWS = (
    "expert_tokens", "expert_load", "expert_rank_load", "expert_entropy", "expert_dropped", "expert_overflows",
)  # fmt: skip
"""Sums over tokens and layers: of 1; of the load of the fullest expert, relative to the mean; of that of the fullest
expert rank; of the entropy of the routing; of assignments that no expert has computed; of 1 where an exchange took more
than one round."""

REPORTS = (AUXILIARY_LOSS, TOKENS, LOAD, RANK_LOAD, ENTROPY, DROPPED, OVERFLOWS)


def expert_metrics(report: Mapping[str, float]) -> dict[str, float]:
    """By the names of metrics; nothing for a model without experts.

    `load`, `rank_load`, `entropy` and `overflows` are means over layers and microbatches; `dropped` counts assignments
    per token and layer; `auxiliary_loss` is what is added to the mean loss of a token, over all layers.
    """
    if not report.get(TOKENS):
        return {}
    means = {"load": LOAD, "rank_load": RANK_LOAD, "entropy": ENTROPY, "dropped": DROPPED, "overflows": OVERFLOWS}
    found = {name: float(report[sums]) / float(report[TOKENS]) for name, sums in means.items()}
    return found | {"auxiliary_loss": float(report[AUXILIARY_LOSS])}
