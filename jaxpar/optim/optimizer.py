"""The optimizer: a rule for each weight, which is updated by itself.

To add an optimizer, write its rule in a file of its own (`rule.py` states what a rule is) and register it in
`jaxpar.config.parts.OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config.errors import UserError
from jaxpar.config.parts import OPTIMIZERS, implementation
from jaxpar.config.plan import AxisSizes
from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.optim.arguments import OptimizerArguments
from jaxpar.optim.moments import decode, encode
from jaxpar.optim.rule import Rule, RuleRequest

type OptimizerState = dict[str, PyTree]
"""The arrays that the rules keep, by name: a tree like that of the weights, with None in place of a weight whose rule
keeps none, in the stored form of `moments.py`. The training step keeps the number of updates."""

ROUNDING = 1e-6
"""Share of the mean by which float32 sums of layouts may differ: one token in a million moves no router bias."""

AVERAGE = "average"
"""The name in `OptimizerState` of the moving average of the weights in float32; absent without `optimizer.ema`."""


@dataclass(frozen=True)
class WeightOptimizer:
    """The optimizer of one weight. It reads nothing of other weights."""

    rule: Rule
    spec: ParamSpec
    averages: bool
    """Whether a moving average of the weight is kept."""

    def init(self, master: Float[Array, "*shard"]) -> dict[str, PyTree[Float[Array, "*shard"]]]:
        """The state before the first update: of a global array under `jit`, or of a shard; no communication."""
        state = {name: array.zeros(self.spec, master) for name, array in self.rule.state.items()}
        return state | ({AVERAGE: master.astype(jnp.float32)} if self.averages else {})

    def update(
        self,
        gradient: Float[Array, "*shard"],
        state: dict[str, PyTree[Float[Array, "*shard"]]],
        master: Float[Array, "*shard"],
        step: Int[Array, ""],
        arguments: OptimizerArguments,
    ) -> tuple[Float[Array, "*shard"], dict[str, PyTree[Float[Array, "*shard"]]]]:
        """(new master weight, new state), inside `shard_map`, on shards in optimizer placement.

        `step` is the number of updates applied so far, and `arguments` are those of this step. The update is computed
        in float32; the state is rounded once, at the end. Weights without `decay` in their spec get no weight decay.
        """
        arrays, rate = self.rule.state, self.rule.rate(arguments)
        decay = arguments.weight_decay if self.spec.decay else 0.0
        before = {name: decode(array.form, state[name]) for name, array in arrays.items()}
        direction, after = self.rule.direction(gradient.astype(jnp.float32), master, before, step, arguments)
        new = {name: encode(one.form, after[name], step, signed=one.signed) for name, one in arrays.items()}
        weight = master - rate * (direction + decay * master)
        if self.averages:
            new[AVERAGE] = next_average(state[AVERAGE], weight, step, arguments.ema)
        return weight, new

    def state_layout(self, layout: PartitionSpec) -> dict[str, PyTree[Float[Array, "*shard"]]]:
        """The partition of the master weight to those of the state."""
        state = {name: array.layout(layout) for name, array in self.rule.state.items()}
        return state | ({AVERAGE: layout} if self.averages else {})


@dataclass(frozen=True)
class Optimizer:
    """The optimizers of all weights; `make_optimizer` makes it. Each weight is updated by its own."""

    weights: tuple[WeightOptimizer, ...]
    """Optimizers of the weights, in the order of the specs' leaves."""
    structure: Any
    """Tree structure of the specs."""

    def init(self, master: PyTree) -> OptimizerState:
        """Master weights to the state before the first update: global arrays under `jit`, or shards."""
        each = zip(self.weights, self.structure.flatten_up_to(master), strict=True)
        return states_by_name([optimizer.init(weight) for optimizer, weight in each], self.structure)

    def state_layout(self, layout: PyTree) -> OptimizerState:
        """PartitionSpecs of the master weights to PartitionSpecs of the state."""
        each = zip(self.weights, self.structure.flatten_up_to(layout), strict=True)
        return states_by_name([optimizer.state_layout(spec) for optimizer, spec in each], self.structure)

    def check_layout(self, name: str, layout: PyTree, sizes: AxisSizes) -> None:
        """Raises `UserError` if a dim of the state of optimizer `name` does not divide by the ranks that share it."""
        described = jax.tree_util.tree_leaves_with_path(self.structure.unflatten(self.weights))
        for (path, one), where in zip(described, self.structure.flatten_up_to(layout), strict=True):
            for key, array in one.rule.state.items():
                for size, unit, dims in zip(array.shape, array.units, array.dims, strict=True):
                    axes = [axis for dim in dims for axis in axes_of_dim(where, dim)]
                    if size % (unit * prod(sizes[axis] for axis in axes)):
                        weight = jax.tree_util.keystr(path, simple=True, separator=".")
                        stored, other = f"a dim of {size}", "optimizer"
                        if unit > 1:
                            stored, other = f"{stored} in blocks of {unit} elements", "precision.moments than int8"
                        ranks = " x ".join(f"{axis} {sizes[axis]}" for axis in axes)
                        raise UserError(
                            f"optimizer.name: {name} keeps {key} of {weight} with {stored}, which does not divide by "
                            f"{ranks}; expected a mesh by which it divides, or another {other}"
                        )


def states_by_name(states: Sequence[dict[str, PyTree[Float[Array, "*shard"]]]], structure: Any) -> OptimizerState:
    """The trees, by name, of the states of single weights."""
    names = sorted({name for state in states for name in state})
    return {name: structure.unflatten([state.get(name) for state in states]) for name in names}


def states_by_weight(state: OptimizerState, structure: Any) -> list[dict[str, PyTree[Float[Array, "*shard"]]]]:
    """The inverse of `states_by_name`."""
    trees = {name: structure.flatten_up_to(tree) for name, tree in state.items()}
    each = ({name: tree[index] for name, tree in trees.items()} for index in range(structure.num_leaves))
    return [{name: array for name, array in one.items() if array is not None} for one in each]


def make_optimizer(
    config: OptimizerConfig, *, moments: str, matrix_dtype: str = "float32", specs: PyTree, layout: PyTree
) -> Optimizer:
    """The optimizer that `config` asks for. The numbers of `config` are arguments of its updates.

    `specs` has a ParamSpec and `layout` a PartitionSpec (optimizer placement) for each weight; `moments` is how
    moments are stored (`precision.moments`), and `matrix_dtype` is that of the matmuls of rules that see matrices.
    """
    described, structure = jax.tree.flatten(specs)
    each = zip(described, structure.flatten_up_to(layout), strict=True)
    rules = [rule_of(RuleRequest(config, spec, moments, layout, matrix_dtype)) for spec, layout in each]
    averages = config.ema is not None
    weights = (WeightOptimizer(rule, spec, averages) for rule, spec in zip(rules, described, strict=True))
    return Optimizer(tuple(weights), structure)


@lru_cache(maxsize=10_000)
def rule_of(request: RuleRequest) -> Rule:
    """The rule of a weight: that of `optimizer.name`; biases that count tokens have their own."""
    if request.spec.balance_rate is not None:
        return balance(request.spec.balance_rate)
    return implementation(OPTIMIZERS[request.config.name].rule)(request)


def next_average(average: PyTree, weights: PyTree, step: Int[Array, ""], decay: Float[Array, ""]) -> PyTree:
    """The average after an update that gave `weights`; `step` counts the updates before it. Elementwise, in float32.

    `average <- d average + (1 - d) weights` with d = min(decay, (1 + step) / (10 + step)): it starts as the initial
    weights, and the warm-up of d lets it forget them within some ten updates (as TensorFlow's
    `ExponentialMovingAverage(num_updates)`), so there is no bias to correct and no count to keep. An average that
    begins later, in a continued run, starts as the weights of that moment.
    """
    t = step.astype(jnp.float32)
    share = 1.0 - jnp.minimum(decay, (1.0 + t) / (10.0 + t))
    return jax.tree.map(lambda old, weight: old + share * (weight - old), average, weights)


def balance(rate: float) -> Rule:
    """Rule that balances a router without a loss (arXiv:2408.15664).

    It moves each bias by `rate`: up if its choice got fewer tokens than the mean, down if it got more, and not at all
    if it got the mean.

    The gradient is the number of tokens of each choice in the batch, [layers, choices], in any unit.
    """

    def direction(gradient, weight, state, step, arguments):
        mean = gradient.mean(axis=-1, keepdims=True)
        excess = gradient - mean
        return jnp.where(jnp.abs(excess) > ROUNDING * mean, jnp.sign(excess), 0.0), {}

    return Rule({}, direction, "row", rate=lambda arguments: jnp.float32(rate))
