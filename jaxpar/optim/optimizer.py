"""The optimizer: a rule for each weight, which is updated by itself.

To add an optimizer, write its rule in a file of its own (`rule.py` states what a rule is) and choose it in `_rule_of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.optim.adafactor import adafactor
from jaxpar.optim.adamw import adamw
from jaxpar.optim.arguments import OptimizerArguments
from jaxpar.optim.average import next_average
from jaxpar.optim.balance import balance
from jaxpar.optim.lion import lion
from jaxpar.optim.moments import Form, decode, encode, form_of, layout_of, zeros
from jaxpar.optim.muon import muon
from jaxpar.optim.rule import Rule, all_dims, moments_of, only_dims


class OptimizerState(NamedTuple):
    """What the rules keep, placed like the master weights. The training step keeps the number of updates."""

    mu: PyTree
    """Adam's first moment, or the momentum of Muon or Lion, in the stored form of `moments.py`; None in place of a
    weight whose rule keeps none."""
    nu: PyTree
    """Adam's second moment likewise, or Adafactor's row and column means in float32; None if a rule keeps none."""
    average: PyTree
    """Moving average of the weights in float32; None without `optimizer.ema`."""


@dataclass(frozen=True)
class WeightOptimizer:
    """The optimizer of one weight. It reads nothing of other weights."""

    rule: Rule
    form: Form
    """How moments are stored between updates."""
    coded: bool
    """Whether the second moment is shaped like the weight, and so stored as `form` too."""
    decays: bool
    """Whether the weight has weight decay."""
    averages: bool
    """Whether a moving average of the weight is kept."""

    def init(self, master: Float[Array, "*shard"]) -> OptimizerState:
        """The state before the first update: of a global array under `jit`, or of a shard; no communication."""
        means = lambda dims: jnp.zeros([master.shape[dim] for dim in dims], jnp.float32)
        mu = zeros(self.form, master, signed=True) if self.rule.mu else None
        nu = zeros(self.form, master, signed=False) if self.coded else moments_of(self.rule, means)
        return OptimizerState(mu, nu, master.astype(jnp.float32) if self.averages else None)

    def update(
        self,
        gradient: Float[Array, "*shard"],
        state: OptimizerState,
        master: Float[Array, "*shard"],
        step: Int[Array, ""],
        arguments: OptimizerArguments,
    ) -> tuple[Float[Array, "*shard"], OptimizerState]:
        """(new master weight, new state), inside `shard_map`, on shards in optimizer placement.

        `step` is the number of updates applied so far, and `arguments` are those of this step. The update is computed
        in float32; moments are rounded once, at the end.
        """
        rate = self.rule.rate(arguments)
        decay = arguments.weight_decay if self.decays else 0.0
        mu = decode(self.form, state.mu) if self.rule.mu else None
        nu = decode(self.form, state.nu) if self.coded else state.nu
        direction, mu, nu = self.rule.direction(gradient.astype(jnp.float32), master, mu, nu, step, arguments)
        mu = None if mu is None else encode(self.form, mu, step, signed=True)
        nu = encode(self.form, nu, step, signed=False) if self.coded else nu
        weight = master - rate * (direction + decay * master)
        average = next_average(state.average, weight, step, arguments.ema) if self.averages else None
        return weight, OptimizerState(mu, nu, average)

    def state_layout(self, layout: PartitionSpec) -> OptimizerState:
        """The partition of the master weight to those of the state."""
        mu = layout_of(self.form, layout) if self.rule.mu else None
        nu = layout_of(self.form, layout) if self.coded else moments_of(self.rule, lambda dims: only_dims(layout, dims))
        return OptimizerState(mu, nu, layout if self.averages else None)


@dataclass(frozen=True)
class Optimizer:
    """The optimizers of all weights; `make_optimizer` makes it. Each weight is updated by its own."""

    weights: tuple[WeightOptimizer, ...]
    """In the order of the leaves of the specs."""
    structure: Any
    """Tree structure of the specs."""

    def init(self, master: PyTree) -> OptimizerState:
        """Master weights to the state before the first update: global arrays under `jit`, or shards."""
        each = zip(self.weights, self.structure.flatten_up_to(master), strict=True)
        return self._joined([optimizer.init(weight) for optimizer, weight in each])

    def state_layout(self, layout: PyTree) -> OptimizerState:
        """PartitionSpecs of the master weights to PartitionSpecs of the state."""
        each = zip(self.weights, self.structure.flatten_up_to(layout), strict=True)
        return self._joined([optimizer.state_layout(spec) for optimizer, spec in each])

    def _joined(self, states: list[OptimizerState]) -> OptimizerState:
        mu, nu, average = (self.structure.unflatten(part) for part in zip(*states, strict=True))
        return OptimizerState(mu, nu, None if all(state.average is None for state in states) else average)


def make_optimizer(
    config: OptimizerConfig, *, moments: str, muon_dtype: DTypeLike = "float32", specs: PyTree, layout: PyTree
) -> Optimizer:
    """The optimizer that `config` asks for. The numbers of `config` are arguments of its updates.

    `specs` has a ParamSpec and `layout` a PartitionSpec (optimizer placement) for each weight; `moments` is how
    moments are stored (`precision.moments`), and `muon_dtype` is that of Muon's Newton-Schulz iterations. Weights
    without `decay` in their spec get no weight decay.
    """
    described, structure = jax.tree.flatten(specs)

    def one(spec: ParamSpec, layout: PartitionSpec) -> WeightOptimizer:
        rule = _rule_of(config, spec, layout, muon_dtype)
        coded, averages = rule.nu == all_dims(spec), config.ema is not None
        return WeightOptimizer(rule, form_of(moments, spec), coded, spec.decay, averages)

    each = zip(described, structure.flatten_up_to(layout), strict=True)
    return Optimizer(tuple(one(*leaf) for leaf in each), structure)


def _rule_of(config: OptimizerConfig, spec: ParamSpec, layout: PartitionSpec, muon_dtype: DTypeLike) -> Rule:
    """The rule of a weight: that of `optimizer.name`; under Muon, AdamW for all that is not a layer's matrix. Biases
    that count tokens have their own."""
    if spec.balance_rate is not None:
        return balance(spec.balance_rate)
    if config.name == "lion":
        return lion()
    if config.name == "adafactor":
        return adafactor(config, spec, layout)
    if config.name == "muon" and spec.matrix:
        return muon(config, spec, layout, muon_dtype)
    return adamw(spec)
