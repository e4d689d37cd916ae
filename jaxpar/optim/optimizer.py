"""The optimizer: a rule for each weight, one step for all.

To add an optimizer, write its rule in a file of its own (`rule.py` says what a rule is) and choose it in `_rule_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec, Tree
from jaxpar.optim.adafactor import adafactor
from jaxpar.optim.adamw import adamw
from jaxpar.optim.average import next_average
from jaxpar.optim.lion import lion
from jaxpar.optim.moments import Form, decode, encode, form_of, layout_of, zeros
from jaxpar.optim.muon import muon
from jaxpar.optim.rule import Rule, all_dims, moments_of, only_dims
from jaxpar.optim.schedule import Schedule, schedule


class OptimizerState(NamedTuple):
    """What the rules keep, placed like the master weights. The number of updates is the training step's to keep."""

    first: Tree
    """Adam's first moment, or the momentum of Muon or Lion, as `moments.py` has it rest; None in place of a weight
    whose rule keeps none."""
    second: Tree
    """Adam's second moment likewise, or Adafactor's row and column means in float32; None where a rule keeps none."""
    average: Tree
    """Moving average of the weights in float32; None without `optimizer.ema`."""


@dataclass(frozen=True)
class Optimizer:
    """Three pure functions; `make_optimizer` makes them."""

    init: Callable[[Tree], OptimizerState]
    """Master weights to the state before the first update: global arrays under `jit`, or shards; no communication."""
    update: Callable[[Tree, OptimizerState, Tree, Int[Array, ""]], tuple[Tree, OptimizerState, dict[str, Array]]]
    """`(gradients, state, master, step) -> (new master, new state, metrics)`, inside `shard_map`, on shards in
    optimizer placement. `step` is the number of updates applied so far. Metrics are scalars, the same on every rank:
    `learning_rate`, and `muon_learning_rate` under Muon."""
    state_layout: Callable[[Tree], OptimizerState]
    """PartitionSpecs of the master weights to PartitionSpecs of the state."""


def make_optimizer(
    config: OptimizerConfig, *, steps: int, moments: str, specs: Tree, layout: Tree, fraction: Schedule | None = None
) -> Optimizer:
    """The optimizer that `config` asks for, over a run of `steps` updates.

    `specs` has a ParamSpec and `layout` a PartitionSpec (optimizer placement) for each weight; `moments` is how
    moments rest (`precision.moments`); they are updated in float32 and rounded once. Weights without `decay` in their
    spec get no weight decay. The learning rate is `fraction` of its peak, by default the schedule of `config`.
    """
    described, structure = jax.tree.flatten(specs)
    rules = [_rule_of(config, *leaf) for leaf in zip(described, structure.flatten_up_to(layout), strict=True)]
    forms = [form_of(moments, spec) for spec in described]
    whole = [rule.second == all_dims(spec) for rule, spec in zip(rules, described, strict=True)]
    decays = [config.weight_decay if spec.decay else 0.0 for spec in described]
    fraction = schedule(config, steps) if fraction is None else fraction

    def init(master: Tree) -> OptimizerState:
        first, second = [], []
        for rule, form, coded, weight in zip(rules, forms, whole, structure.flatten_up_to(master), strict=True):
            means = lambda dims, shape=weight.shape: jnp.zeros([shape[dim] for dim in dims], jnp.float32)
            first.append(zeros(form, weight, signed=True) if rule.first else None)
            second.append(zeros(form, weight, signed=False) if coded else moments_of(rule, means))
        average = None if config.ema is None else jax.tree.map(lambda weight: weight.astype(jnp.float32), master)
        return OptimizerState(structure.unflatten(first), structure.unflatten(second), average)

    def update(
        gradients: Tree, state: OptimizerState, master: Tree, step: Int[Array, ""]
    ) -> tuple[Tree, OptimizerState, dict[str, Array]]:
        share = fraction(step)
        arrays = zip(*map(structure.flatten_up_to, (master, gradients, state.first, state.second)), strict=True)
        updated = [
            _update_weight(rule, form, coded, rule.peak * share, decay, weight, gradient, first, second, step)
            for rule, form, coded, decay, (weight, gradient, first, second) in zip(
                rules, forms, whole, decays, arrays, strict=True
            )
        ]
        weights, first, second = (structure.unflatten(leaves) for leaves in zip(*updated, strict=True))
        average = None if config.ema is None else next_average(state.average, weights, step, config.ema)
        metrics = {"learning_rate": config.learning_rate * share}
        if config.name == "muon":
            metrics["muon_learning_rate"] = config.muon_learning_rate * share
        return weights, OptimizerState(first, second, average), metrics

    def state_layout(layout: Tree) -> OptimizerState:
        first, second = [], []
        for rule, form, coded, spec in zip(rules, forms, whole, structure.flatten_up_to(layout), strict=True):
            means = lambda dims, spec=spec: only_dims(spec, dims)
            first.append(layout_of(form, spec) if rule.first else None)
            second.append(layout_of(form, spec) if coded else moments_of(rule, means))
        average = None if config.ema is None else layout
        return OptimizerState(structure.unflatten(first), structure.unflatten(second), average)

    return Optimizer(init, update, state_layout)


def _rule_of(config: OptimizerConfig, spec: ParamSpec, layout: PartitionSpec) -> Rule:
    """The rule of a weight: that of `optimizer.name`, but AdamW beside Muon for all that is no layer's matrix."""
    if config.name == "lion":
        return lion(config)
    if config.name == "adafactor":
        return adafactor(config, spec, layout)
    if config.name == "muon" and spec.matrix:
        return muon(config, spec, layout)
    return adamw(config, spec)


def _update_weight(
    rule: Rule,
    form: Form,
    coded: bool,
    rate: Float[Array, ""],
    decay: float,
    weight: Float[Array, "*shard"],
    gradient: Float[Array, "*shard"],
    first: Any,
    second: Any,
    step: Int[Array, ""],
) -> tuple[Float[Array, "*shard"], Any, Any]:
    """One weight's step, in float32; moments that rest as `form` are rounded once, at the end.

    `coded` says that the second moment is shaped like the weight, and so rests as `form` too.
    """
    wide = decode(form, first) if rule.first else None
    direction, wide, second = rule.direction(
        gradient.astype(jnp.float32), weight, wide, decode(form, second) if coded else second, step
    )
    rounded = None if wide is None else encode(form, wide, step, signed=True)
    second = encode(form, second, step, signed=False) if coded else second
    return (weight - rate * (direction + decay * weight), rounded, second)
