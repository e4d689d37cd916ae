"""The optimizer: a rule for each weight, one step for all.

To add an optimizer, write its rule in a file of its own (`rule.py` says what a rule is) and choose it in `_rule_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec, Tree
from jaxpar.optim.adamw import adamw
from jaxpar.optim.muon import muon
from jaxpar.optim.rule import Rule
from jaxpar.optim.schedule import schedule


class OptimizerState(NamedTuple):
    """Moments, placed like the master weights. The number of updates is the training step's to keep."""

    first: Tree
    """Adam's first moment or Muon's momentum: one leaf for each weight, in the `moments` dtype."""
    second: Tree
    """Adam's second moment in float32; None in place of a weight whose rule keeps none."""


@dataclass(frozen=True)
class Optimizer:
    """Three pure functions; `make_optimizer` makes them."""

    init: Callable[[Tree], OptimizerState]
    """Master weights to zero moments: global arrays under `jit`, or shards; no communication."""
    update: Callable[[Tree, OptimizerState, Tree, Int[Array, ""]], tuple[Tree, OptimizerState, dict[str, Array]]]
    """`(gradients, state, master, step) -> (new master, new state, metrics)`, inside `shard_map`, on shards in
    optimizer placement. `step` is the number of updates applied so far. Metrics are scalars, the same on every rank:
    `learning_rate`, and `muon_learning_rate` under Muon."""
    state_layout: Callable[[Tree], OptimizerState]
    """PartitionSpecs of the master weights to PartitionSpecs of the state."""


def make_optimizer(config: OptimizerConfig, *, steps: int, moments: str, specs: Tree, layout: Tree) -> Optimizer:
    """The optimizer that `config` asks for, over a run of `steps` updates.

    `specs` has a ParamSpec and `layout` a PartitionSpec (optimizer placement) for each weight; `moments` is the dtype
    of the first moment (it is updated in float32 and rounded once). Weights without `decay` in their spec get no
    weight decay.
    """
    described, structure = jax.tree.flatten(specs)
    rules = [_rule_of(config, *leaf) for leaf in zip(described, structure.flatten_up_to(layout), strict=True)]
    decays = [config.weight_decay if spec.decay else 0.0 for spec in described]
    fraction = schedule(config, steps)

    def init(master: Tree) -> OptimizerState:
        weights = structure.flatten_up_to(master)
        first = [jnp.zeros_like(weight, moments) for weight in weights]
        second = [
            jnp.zeros_like(weight, jnp.float32) if rule.second_moment else None
            for rule, weight in zip(rules, weights, strict=True)
        ]
        return OptimizerState(structure.unflatten(first), structure.unflatten(second))

    def update(
        gradients: Tree, state: OptimizerState, master: Tree, step: Int[Array, ""]
    ) -> tuple[Tree, OptimizerState, dict[str, Array]]:
        share = fraction(step)
        arrays = zip(*map(structure.flatten_up_to, (master, gradients, *state)), strict=True)
        updated = [
            _update_weight(rule, rule.peak * share, decay, weight, gradient, first, second, step)
            for rule, decay, (weight, gradient, first, second) in zip(rules, decays, arrays, strict=True)
        ]
        weights, first, second = (structure.unflatten(leaves) for leaves in zip(*updated, strict=True))
        metrics = {"learning_rate": config.learning_rate * share}
        if config.name == "muon":
            metrics["muon_learning_rate"] = config.muon_learning_rate * share
        return weights, OptimizerState(first, second), metrics

    def state_layout(layout: Tree) -> OptimizerState:
        first = structure.flatten_up_to(layout)
        second = [spec if rule.second_moment else None for rule, spec in zip(rules, first, strict=True)]
        return OptimizerState(layout, structure.unflatten(second))

    return Optimizer(init, update, state_layout)


def _rule_of(config: OptimizerConfig, spec: ParamSpec, layout: PartitionSpec) -> Rule:
    """Muon for the layers' matrices where it is asked for, AdamW for everything else."""
    if config.name == "muon" and spec.matrix:
        return muon(config, spec, layout)
    return adamw(config)


def _update_weight(
    rule: Rule,
    rate: Float[Array, ""],
    decay: float,
    weight: Float[Array, "*shard"],
    gradient: Float[Array, "*shard"],
    first: Float[Array, "*shard"],
    second: Float[Array, "*shard"] | None,
    step: Int[Array, ""],
) -> tuple[Float[Array, "*shard"], Float[Array, "*shard"], Float[Array, "*shard"] | None]:
    """One weight's step, in float32; the first moment is rounded to its own dtype once, at the end."""
    wide = (gradient.astype(jnp.float32), first.astype(jnp.float32))
    direction, moment, second = rule.direction(*wide, second, step)
    return (weight - rate * (direction + decay * weight), moment.astype(first.dtype), second)
