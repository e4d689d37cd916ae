"""State in pinned host memory (ZeRO-Offload), which passes through the device in pieces; optionally layers too.

The weights of layers in host memory (`memory.weights_offload`) are fetched from the float32 master weights before a
layer's forward and again before its backward, and are cast on the device. Gradients are written to the host as soon as
they are made, and are fetched twice, a piece at a time: for their norm, and for the update. With several microbatches,
each also fetches a layer's gradient to add to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, wraps

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree, UInt

from jaxpar.hardware.host import PINNED
from jaxpar.layout.state import TrainState, join_weights, weight_states
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.memory.streaming import (
    DEVICE,
    fetched_rows,
    is_on_host,
    map_row_pieces,
    rows_of_piece,
    streamed,
    to_host,
    write_rows,
)
from jaxpar.mesh.axes import vary
from jaxpar.mesh.build import mapped
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.materialize import reduced_gradient
from jaxpar.mesh.parameters import Arrays, Nested, Weights, subtree_like
from jaxpar.mesh.placements import WeightPlacement
from jaxpar.mesh.quantized_stack import is_quantized_stack
from jaxpar.optim.norm import squares
from jaxpar.training.residency.initial import InitialWeight, weight_by_weight
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.weight_update import CompiledStep, UpdateFacts


class OnHost(OnDevice):
    """Master weights and moments in pinned host memory, but for those that the plan leaves on the device."""

    @cached_property
    def _streams(self) -> Nested[bool]:
        """Whether the state of each weight is in host memory."""
        return jax.tree.map(lambda where: where.memory_kind == PINNED, self.layout.state_shardings().master)

    # ---- inside the map

    def marked(self, master: Weights) -> Weights:
        mark = lambda a, streams: to_host(a) if streams and not is_on_host(a) else a
        return jax.tree.map(mark, master, self._streams)

    def here(self, master: Weights) -> Weights:
        """Master weights on the device, in storage dtype, without a copy of all in master dtype there."""
        dtypes = subtree_like(self.layout.placements.storage_dtypes, master)
        fetch = lambda weight, dtype: fetched_rows(weight, dtype, rows_of_piece(weight))
        one = lambda a, streams, dtype: fetch(a, dtype) if streams and not is_quantized_stack(a) else a
        with jax.named_scope("stored_weights"):
            streams = {part: self._streams[part] for part in master}
            return jax.tree.map(one, master, streams, dtypes, is_leaf=is_quantized_stack)

    def accumulators(self) -> Weights:
        """Zeros, or uninitialized buffers for layers in host memory: the first gradients do not read them."""
        zeros = super().accumulators()
        if not self.layers_on_host:
            return zeros
        like, structure = jax.tree.flatten(zeros[LAYERS])
        with jax.named_scope("gradients"):
            # XLA only allocates them, and weights of one shape once, to copy from, unless they differ.
            layers = [to_host(vary(jnp.full(a.shape, n, a.dtype))) for n, a in enumerate(like)]
        return zeros | {LAYERS: structure.unflatten(layers)}

    def reduced(self, accumulated: Weights, scale: Float[Array, ""]) -> Weights:
        if not self.layers_on_host:
            return super().reduced(accumulated, scale)
        others = {part: gradients for part, gradients in accumulated.items() if part != LAYERS}
        return super().reduced(others, scale) | {LAYERS: self._host_gradients(accumulated[LAYERS], scale)}

    def _host_gradients(self, host: Arrays, scale: Float[Array, ""]) -> Nested[HostGradient]:
        roles = self.layout.placements

        def one(host: jax.Array, placed: WeightPlacement) -> HostGradient:
            return HostGradient(host, lambda rows: reduced_gradient(rows, placed, dtype=roles.optimizer.dtype) / scale)

        return jax.tree.map(one, host, roles.for_part(LAYERS, host))

    def squares(self, gradients: Weights) -> Weights:
        local = lambda leaf: leaf.squares() if isinstance(leaf, HostGradient) else None
        return squares(gradients, self.layout.master, self.layout.trained, local)

    def full(self, gradients: Weights) -> Weights:
        return jax.tree.map(lambda leaf: leaf.full() if isinstance(leaf, HostGradient) else leaf, gradients)

    def updated(self, state: TrainState, gradients: Weights, facts: UpdateFacts) -> TrainState:
        weights, leaves, new = weight_states(state.master, state.optimizer), jax.tree.leaves(gradients), []
        each = zip(self.updates, jax.tree.leaves(self._streams), weights, leaves, strict=True)
        for update, streams, weight, gradient in each:
            if not streams:
                new.append(update(weight, gradient, facts))
                continue
            # XLA would otherwise fetch the first piece of every weight at once, and keep what the forward read of it.
            weight, facts = lax.optimization_barrier((weight, facts))
            host = gradient if isinstance(gradient, HostGradient) else HostGradient(gradient, lambda rows: rows)
            piece = lambda now, rows, update=update, facts=facts, host=host: update(now, host.finish(rows), facts)
            changed = streamed(piece, weight, host.rows, update.rows(weight))
            weight, facts = lax.optimization_barrier((changed, facts))
            new.append(weight)
        return join_weights(new, state)

    # ---- outside

    @cached_property
    def _initial(self) -> Callable[[StepArguments], TrainState]:
        return partial(weight_by_weight, self.layout, self.mesh, self.updates, self.stored)

    def stored(self, weight: InitialWeight, seed: UInt[Array, ""]) -> PyTree:
        """A weight and its moments before the first step, where they are to be."""
        where, parts = (jax.tree.map(get, weight.like) for get in (lambda a: a.sharding, lambda a: a.sharding.spec))
        on_parts = lambda function, *layouts: mapped(
            function, self.mesh, self.layout.plan.dtypes.compute, layouts, parts
        )
        like, tree = jax.tree.flatten(weight.local)
        # XLA only allocates them, and one for all of a shape, to copy from, unless they differ.
        empty = lambda: tree.unflatten([to_host(jnp.full(a.shape, n, a.dtype)) for n, a in enumerate(like)])
        placed = on_parts(write_rows, parts, parts, PartitionSpec())
        write = lambda state, piece, first: placed(to_host(state), piece, first)
        write, state = jax.jit(write, donate_argnums=0, out_shardings=where), None
        for first, piece in weight.pieces(seed):
            if piece.master.shape == weight.like.master.shape:
                return jax.device_put(piece, where)
            state = jax.jit(on_parts(empty), out_shardings=where)() if state is None else state
            state = write(state, piece, jnp.int32(first))
        return state

    def placing(self, step: CompiledStep) -> CompiledStep:
        @wraps(step)
        def placed(state: TrainState, *rest: PyTree) -> PyTree:  # shapes alone do not say in which memory an array is
            states = zip(weight_states(state.master, state.optimizer), jax.tree.leaves(self._streams), strict=True)
            marked = [to_host(weight) if streams else weight for weight, streams in states]
            return step(join_weights(marked, state), *rest)

        return placed


@dataclass(frozen=True)
class HostGradient:
    """The gradient of a weight of all layers, in host memory. A leaf of trees."""

    rows: Float[Array, " rows *shard"]
    """The gradient as it accumulated, in gradient placement."""
    finish: Callable[[Float[Array, " rows *shard"]], Float[Array, " rows *shard"]]
    """Some of `rows`, on the device, in optimizer placement."""

    def squares(self) -> Float[Array, " rows"]:
        """Sum of the squares of each row of this device's part, in float32."""
        total = lambda rows: jnp.sum(jnp.square(rows.astype(jnp.float32)), axis=tuple(range(1, rows.ndim)))
        return map_row_pieces(lambda rows: total(self.finish(rows)), self.rows, rows_of_piece(self.rows))

    def full(self) -> Float[Array, " rows *shard"]:
        """All of it on the device."""
        return self.finish(jax.device_put(self.rows, DEVICE))
