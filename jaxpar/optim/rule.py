"""What an update rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Array, Float, Int

from jaxpar.mesh.parameters import ParamSpec

Shard = Float[Array, "*shard"]


@dataclass(frozen=True)
class Rule:
    """How one weight's gradient becomes the direction in which the weight moves.

    The optimizer does the rest alike for every rule: `weight -= rate * (direction + decay * weight)`, where the rate
    follows the schedule up to `peak`.
    """

    peak: float
    """Peak learning rate."""
    second_moment: bool
    """Whether the rule keeps a second moment, shaped like the weight."""
    direction: Callable[[Shard, Shard, Shard | None, Int[Array, ""]], tuple[Shard, Shard, Shard | None]]
    """`(gradient, first, second, step) -> (direction, first, second)`, all float32 and local shards, inside
    `shard_map`; `step` counts the updates applied before this one. `second` is None where the rule keeps none."""


def is_stacked(spec: ParamSpec) -> bool:
    """Whether the first dim of a weight counts layers, each a weight of its own."""
    return spec.axes[:1] == ("layers",)
