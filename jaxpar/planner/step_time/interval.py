"""How far a measured step is from its prediction."""

from __future__ import annotations

TIME_ERROR = 0.124
"""Nine of ten measured steps of published runs are within this share of their prediction, where their source was left
out of the fit: the mean over sources in docs/planner.md (Errors of tokens/s/GPU, leave one source out, p90)."""


def interval(seconds: float) -> tuple[float, float]:
    """The least and the greatest time of a step that was predicted to take `seconds`, in nine of ten runs."""
    return (1 - TIME_ERROR) * seconds, (1 + TIME_ERROR) * seconds
