"""The definition of an update rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.arguments import OptimizerArguments

Shard = Float[Array, "*shard"]

type Dims = tuple[int, ...]

type Moments = Dims | Mapping[str, Dims] | None
"""One array, several by name, or none. Arrays of a stacked weight keep the dim of the layers, as their first."""


@dataclass(frozen=True)
class Rule:
    """How one weight's gradient becomes the direction in which the weight moves.

    The optimizer does the rest, the same for every rule: `weight -= rate * (direction + decay * weight)`, where the
    rate and the decay are arguments of the step, as every number of the configuration is that a rule reads.
    """

    mu: bool
    """Whether the rule keeps a first moment (mu), shaped like the weight."""
    nu: Moments
    """What the rule keeps as nu, in float32: for each array the dims of the weight that it has."""
    direction: Callable[
        [Shard, Shard, Shard | None, Any, Int[Array, ""], OptimizerArguments], tuple[Shard, Shard | None, Any]
    ]
    """`(gradient, weight, mu, nu, step, arguments) -> (direction, mu, nu)`, all float32 and local shards, inside
    `shard_map`; `step` counts the updates applied before this one. `mu` and `nu` are None where the rule keeps
    none."""
    rate: Callable[[OptimizerArguments], Float[Array, ""]] = lambda arguments: arguments.learning_rate
    """The learning rate of a step, from its arguments."""


def is_stacked(spec: ParamSpec) -> bool:
    """Whether the first dim of a weight counts layers, each a weight of its own."""
    return spec.axes[:1] == ("layers",)


def all_dims(spec: ParamSpec) -> Dims:
    """Every dim of a weight: the moments of a rule that keeps one array shaped like it."""
    return tuple(range(len(spec.shape)))


def moments_of(rule: Rule, make: Callable[[Dims], Any]) -> Any:
    """`make(dims)` for each array that `rule` keeps as nu, in the rule's own structure."""
    return jax.tree.map(make, rule.nu, is_leaf=lambda x: isinstance(x, tuple))


def only_dims(layout: PartitionSpec, dims: Dims) -> PartitionSpec:
    """The layout of an array that has only these dims (ascending) of a weight with `layout`."""
    return PartitionSpec(*(layout[dim] for dim in dims if dim < len(layout)))
