"""The initial state where it is not stored on the device: made weight by weight.

A weight of all layers may be larger than the device's memory, so what is stored in host memory is made there a
piece of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxpar.hardware.host import PINNED
from jaxpar.layout.state import TrainState, WeightState, join_weights, weight_states
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.memory.streaming import HOST, to_host
from jaxpar.mesh.mapped import mapped
from jaxpar.mesh.parameters import initial_weight
from jaxpar.optim.rule import is_stacked
from jaxpar.training.residency.weight_update import WeightUpdate
from pallas_kernels.varying import vary_over


def one_by_one(layout: StepLayout, mesh: Mesh, updates: Sequence[WeightUpdate], arguments: StepArguments) -> TrainState:
    """The state, each array where it is to be."""
    return _assembled(layout, mesh, updates, arguments, lambda weight: weight.placed(arguments.seed))


def makers(layout: StepLayout, mesh: Mesh, updates: Sequence[WeightUpdate], arguments: StepArguments) -> TrainState:
    """The state, with a function that makes it on the device in place of each array of master weights and moments."""
    return _assembled(layout, mesh, updates, arguments, lambda weight: weight.makers(arguments.seed))


def _assembled(
    layout: StepLayout, mesh: Mesh, updates: Sequence[WeightUpdate], arguments: StepArguments, make: Any
) -> TrainState:
    places = layout.state_shardings(mesh)
    rest = lambda arguments: layout.initial_state(arguments)._replace(master=None, optimizer=None)
    state = jax.jit(rest, out_shardings=places._replace(master=None, optimizer=None))(arguments)
    each = zip(weight_states(places.master, places.optimizer), updates, strict=True)
    states = [make(InitialWeight(layout, mesh, number, *own)) for number, own in enumerate(each)]
    joined = join_weights(states, places)
    return state._replace(master=joined.master, optimizer=joined.optimizer)


@dataclass(frozen=True)
class InitialWeight:
    """A weight and its moments before the first step."""

    layout: StepLayout
    mesh: Mesh
    number: int
    """Among the leaves of the specs of trained weights."""
    places: Any
    """Shardings of the weight and of what its rule keeps."""
    update: WeightUpdate

    @property
    def _path_and_spec(self) -> Any:
        return jax.tree_util.tree_leaves_with_path(self.layout.trained)[self.number]

    def rows(self, layers: jax.Array, seed: jax.Array) -> WeightState:
        """The values; of a stacked weight, the rows of these layers."""
        path, spec = self._path_and_spec
        name = jax.tree_util.keystr(self.layout.order.without_kind(path))
        master = initial_weight(name, spec, seed, layers)
        return WeightState(master, self.update.optimizer.init(master))

    @property
    def numbers(self) -> np.ndarray:
        """The layer numbers of a stacked weight's rows, [rank, chunk, row]; None for other weights."""
        path, spec = self._path_and_spec
        pipe = self.layout.plan.axes.pipe
        return self.layout.order.stack_at(path).numbers if is_stacked(spec) else np.zeros((pipe, 0, 0), int)

    def makers(self, seed: jax.Array) -> Any:
        """The functions that make each array on the device."""
        layers = jnp.asarray(self.numbers.ravel(), jnp.int32)
        leaves, structure = jax.tree.flatten(self.places)

        def make(place: int, where: Any) -> Any:
            one = lambda seed: jax.tree.leaves(self.rows(layers, seed))[place]
            return partial(jax.jit(one, out_shardings=where.with_memory_kind("device")), seed)

        return structure.unflatten([make(place, where) for place, where in enumerate(leaves)])

    def placed(self, seed: jax.Array) -> Any:
        """The arrays, each where it is to be; a stack in host memory in pieces."""
        layers = jnp.asarray(self.numbers.ravel(), jnp.int32)
        rows = self.update.rows(self.local)
        _, spec = self._path_and_spec
        if self.places.master.memory_kind == PINNED and is_stacked(spec) and rows is not None:
            return self._in_pieces(rows, seed)
        on_device = jax.tree.map(lambda where: where.with_memory_kind("device"), self.places)
        return jax.device_put(jax.jit(self.rows, out_shardings=on_device)(layers, seed), self.places)

    @property
    def local(self) -> WeightState:
        """Shapes of a device's part."""
        like = jax.eval_shape(self.rows, jnp.asarray(self.numbers.ravel(), jnp.int32), jnp.uint32(0))
        return jax.tree.map(
            lambda a, where: jax.ShapeDtypeStruct(where.shard_shape(a.shape), a.dtype), like, self.places
        )

    def _in_pieces(self, rows: int, seed: jax.Array) -> Any:
        """A stacked weight and its moments in host memory, so many rows of each device's part made at a time."""
        local = self.local
        compiled = jax.jit(self.filling(local), static_argnums=3, donate_argnums=0, out_shardings=self.places)
        total, state = local.master.shape[0], None
        for place in range(0, total, rows):
            state = compiled(state, jnp.int32(place), seed, min(rows, total - place))
        return state

    def filling(self, local: WeightState) -> Callable[[Any, jax.Array, jax.Array, int], WeightState]:
        """`(state in host memory, first row, seed, rows) -> state` with these rows of each device's part made.

        In place of the state before the first rows there is None. `local` has the shapes of a device's part.
        """
        layout, mesh = self.layout, self.mesh
        layers = self.numbers.reshape(-1, local.master.shape[0])
        assert len(layers) == layout.plan.axes.pipe, "rows of a stack are split over the pipeline alone"
        parts = weight_states(layout.state.master, layout.state.optimizer)[self.number]

        def write(state: Any, piece: WeightState, place: jax.Array) -> WeightState:
            leaves, structure = jax.tree.flatten(piece)
            if state is None:
                # XLA only allocates them, and one for all of a shape, to copy from, unless they differ.
                empty = [jnp.full(a.shape, order, a.dtype) for order, a in enumerate(jax.tree.leaves(local))]
                varying = [jax.typeof(a).manual_axis_type.varying for a in leaves]
                states = [to_host(vary_over(a, axes)) for a, axes in zip(empty, varying, strict=True)]
            else:
                states = jax.tree.leaves(state)
            pairs = zip(states, leaves, strict=True)
            return structure.unflatten(
                [lax.dynamic_update_slice_in_dim(a, jax.device_put(b, HOST), place, 0) for a, b in pairs]
            )

        def fill(state: Any, place: jax.Array, seed: jax.Array, rows: int) -> WeightState:
            own = lax.dynamic_slice_in_dim(jnp.asarray(layers, jnp.int32), place, rows, 1).ravel()
            piece = lax.with_sharding_constraint(self.rows(own, seed), shardings(mesh, parts))
            before = None if state is None else parts
            # Shapes alone do not say in which memory an array is.
            step = mapped(write, mesh, layout.plan.dtypes.compute, (before, parts, PartitionSpec()), parts)
            return step(to_host(state), piece, place)

        return fill
