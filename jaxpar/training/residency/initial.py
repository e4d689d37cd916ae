"""The initial state where it is not stored on the device: made weight by weight, and a piece of rows at a time.

A weight of all layers may be larger than the device's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree, UInt

from jaxpar.hardware.host import PINNED
from jaxpar.layout.state import TrainState, WeightState, join_weights, weight_states
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.layer_order import without_kind
from jaxpar.mesh.parameters import initial_weight
from jaxpar.optim.rule import is_stacked
from jaxpar.training.residency.weight_update import WeightUpdate


@dataclass(frozen=True)
class InitialWeight:
    """A weight and its moments before the first step."""

    layout: StepLayout
    index: int
    """Among the leaves of the specs of trained weights."""
    like: PyTree
    """Shapes, dtypes and shardings of the weight and of what its rule keeps."""
    update: WeightUpdate

    @property
    def _leaf(self) -> PyTree:
        return jax.tree_util.tree_leaves_with_path(self.layout.trained)[self.index]

    def rows(self, layers: Int[Array, " rows"], seed: UInt[Array, ""]) -> WeightState:
        """The values; of a stacked weight, the rows of these layers."""
        path, spec = self._leaf
        name = jax.tree_util.keystr(without_kind(path))
        master = initial_weight(name, spec, seed, layers)
        return WeightState(master, self.update.optimizer.init(master))

    @property
    def layers(self) -> Int[np.ndarray, "ranks rows"]:
        """The layers of the rows that each pipeline rank has of a stacked weight; empty for other weights."""
        path, spec = self._leaf
        pipe = self.layout.plan.axes.pipe
        numbers = self.layout.order.stack_at(path).numbers if is_stacked(spec) else np.zeros((pipe, 0))
        return numbers.reshape(pipe, -1).astype(np.int32)

    @property
    def local(self) -> WeightState:
        """Shapes of a device's part."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.sharding.shard_shape(a.shape), a.dtype), self.like)

    def pieces(self, seed: UInt[Array, ""]) -> Iterator[tuple[int, WeightState]]:
        """(first row of each device's part, these rows in device memory), one after the other; all rows at once where
        the rule needs them, and of a weight that is not stacked, or that stays on the device."""
        made = jax.jit(
            self.rows, out_shardings=jax.tree.map(lambda a: a.sharding.with_memory_kind("device"), self.like)
        )
        layers, total = self.layers, self.layers.shape[1]
        cut = total and self.like.master.sharding.memory_kind == PINNED
        rows = (self.update.rows(self.local) if cut else None) or max(1, total)
        for first in range(0, max(1, total), rows):
            yield first, made(jnp.asarray(layers[:, first : first + rows].ravel()), seed)


def weight_by_weight(
    layout: StepLayout,
    mesh: Mesh,
    updates: Sequence[WeightUpdate],
    stored: Callable[[InitialWeight, UInt[Array, ""]], PyTree],
    arguments: StepArguments,
) -> TrainState:
    """The state; `stored` makes a weight and its moments where they are to be."""
    like, places = layout.abstract_state(mesh), layout.state_shardings(mesh)
    rest = lambda arguments: layout.initial_state(arguments)._replace(master=None, optimizer=None)
    state = jax.jit(rest, out_shardings=places._replace(master=None, optimizer=None))(arguments)
    each = zip(weight_states(like.master, like.optimizer), updates, strict=True)
    states = [stored(InitialWeight(layout, index, *declared), arguments.seed) for index, declared in enumerate(each)]
    joined = join_weights(states, like)
    return state._replace(master=joined.master, optimizer=joined.optimizer)
