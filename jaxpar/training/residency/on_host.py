"""State in pinned host memory (ZeRO-Offload), which passes through the device in pieces; optionally layers too.

The weights of layers in host memory (`memory.weights_offload`) are fetched from the float32 master weights before a
layer's forward and again before its backward, and are cast on the device. Gradients are written to the host as soon as
they are made, and are fetched twice, a piece at a time: for their norm, and for the update. With several microbatches,
each also fetches a layer's gradient to add to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.layout.state import TrainState, WeightState, join_weights, weight_states
from jaxpar.memory.streaming import DEVICE, by_rows, fetched_rows, on_host, rows_of_piece, streamed, to_host
from jaxpar.mesh.axes import vary
from jaxpar.mesh.coded import is_coded_stack
from jaxpar.mesh.layer_order import LAYERS, Parted
from jaxpar.mesh.materialize import reduced_gradient, to_storage, zero_accumulators
from jaxpar.mesh.parameters import Arrays, Nested, Weights, map_specs
from jaxpar.optim.norm import squares
from jaxpar.optim.rule import is_stacked
from jaxpar.training.residency.initial import one_by_one
from jaxpar.training.residency.on_device import OnDevice
from jaxpar.training.residency.weight_update import UpdateFacts, WeightUpdate


class OnHost(OnDevice):
    """Master weights and moments in pinned host memory, except those that the plan leaves on the device."""

    # ---- inside the map

    def marked(self, master: Weights) -> Weights:
        leaves, structure = jax.tree.flatten(master)
        pairs = zip(leaves, self.layout.on_device, strict=True)
        return structure.unflatten([own if stays or on_host(own) else to_host(own) for own, stays in pairs])

    def compute_weights(self, master: Weights, *, layers_later: bool = False) -> Weights:
        assert not layers_later, "master weights in host memory are cast on the device all at once"
        layout, host_layers = self.layout, self.layout.plan.host_layers
        dtype = layout.placements.storage.dtype
        with jax.named_scope("stored_weights"):
            leaves, structure = jax.tree.flatten(master, is_leaf=is_coded_stack)
            stacked = jax.tree.leaves(map_specs(is_stacked, layout.trained))
            fetch = lambda weight, first: fetched_rows(weight, dtype, rows_of_piece(weight), first)
            there = [
                weight if stays or is_coded_stack(weight) else fetch(weight, host_layers if layered else 0)
                for weight, layered, stays in zip(leaves, stacked, layout.on_device, strict=True)
            ]
        stored = to_storage(structure.unflatten(there), layout.placements)
        return stored | {LAYERS: Parted(master[LAYERS], stored[LAYERS])} if host_layers else stored

    def accumulators(self, weights: Weights) -> Weights:
        layers = weights[LAYERS]
        if not isinstance(layers, Parted):
            return super().accumulators(weights)
        rest = {part: own for part, own in weights.items() if part != LAYERS}
        return super().accumulators(rest) | {LAYERS: self._parted_accumulators(layers)}

    def _parted_accumulators(self, layers: Parted) -> Parted:
        """Zeros on the device; in host memory uninitialized, since the first gradients do not read it."""
        zeros = lambda own: zero_accumulators(own, self.layout.placements, part=LAYERS)
        like, structure = jax.tree.flatten(jax.eval_shape(lambda: zeros(layers.device)))
        rows = self.layout.plan.host_layers
        with jax.named_scope("gradients"):
            # XLA only allocates them, and weights of one shape once, to copy from, unless they differ.
            host = [to_host(vary(jnp.full((rows, *a.shape[1:]), n, a.dtype))) for n, a in enumerate(like)]
        return Parted(structure.unflatten(host), zeros(layers.device))

    def reduced(self, accumulated: Weights, scale: Float[Array, ""]) -> Weights:
        layers = accumulated[LAYERS]
        if not isinstance(layers, Parted):
            return super().reduced(accumulated, scale)
        device = super().reduced(accumulated | {LAYERS: layers.device}, scale)
        return device | {LAYERS: self._host_gradients(layers.host, device[LAYERS], scale)}

    def _host_gradients(self, host: Arrays, device: Arrays, scale: Float[Array, ""]) -> Nested[Any]:
        """A `HostGradient` for each weight of the layers."""
        roles = self.layout.placements

        def one(host: jax.Array, device: jax.Array, *layouts: Any) -> HostGradient:
            finish = lambda rows: reduced_gradient(rows, *layouts, dtype=roles.optimizer.dtype) / scale
            return HostGradient(host, device, finish)

        trees = roles.compute.layout, roles.gradient.layout, roles.optimizer.layout, roles.wires
        return jax.tree.map(one, host, device, *(tree[LAYERS] for tree in trees))

    def squares(self, gradients: Weights) -> Weights:
        own = lambda leaf: leaf.squares() if isinstance(leaf, HostGradient) else None
        return squares(gradients, self.layout.master, self.layout.trained, own)

    def whole(self, gradients: Weights) -> Weights:
        return jax.tree.map(lambda leaf: leaf.whole() if isinstance(leaf, HostGradient) else leaf, gradients)

    def updated(self, state: TrainState, gradients: Weights, facts: UpdateFacts) -> TrainState:
        weights, leaves, new = weight_states(state.master, state.optimizer), jax.tree.leaves(gradients), []
        for update, stays, weight, gradient in zip(self.updates, self.layout.on_device, weights, leaves, strict=True):
            if stays:
                new.append(update(weight, gradient, facts))
                continue
            # XLA would otherwise fetch the first piece of every weight at once, and keep what the forward read of it.
            weight, facts = lax.optimization_barrier((weight, facts))
            if isinstance(gradient, HostGradient):
                changed = gradient.update(update, weight, facts)
            else:
                piece = lambda now, part, update=update, facts=facts: update(now, part, facts)
                changed = streamed(piece, weight, gradient, update.rows(weight))
            weight, facts = lax.optimization_barrier((changed, facts))
            new.append(weight)
        return join_weights(new, state)

    # ---- outside

    @cached_property
    def _initial(self) -> Any:
        return lambda arguments: one_by_one(self.layout, self.mesh, self.updates, arguments)

    def placing(self, step: Any) -> Any:
        @wraps(step)
        def placed(state: TrainState, *rest: Any) -> Any:  # shapes alone do not say in which memory an array is
            states = [
                own if stays else to_host(own)
                for own, stays in zip(weight_states(state.master, state.optimizer), self.layout.on_device, strict=True)
            ]
            return step(join_weights(states, state), *rest)

        return placed


@dataclass(frozen=True)
class HostGradient:
    """The gradient of a weight of all layers, of which the first rows are in host memory. A leaf of trees."""

    host: Float[Array, "offloaded *shard"]
    """In gradient placement, as it accumulated."""
    device: Float[Array, "stay *shard"]
    """In optimizer placement."""
    finish: Callable[[Float[Array, "rows *shard"]], Float[Array, "rows *shard"]]
    """Rows of `host`, on the device, in optimizer placement."""

    def squares(self) -> Float[Array, " rows"]:
        """Sum of the squares of each row of this device's part, in float32."""
        total = lambda rows: jnp.sum(jnp.square(rows.astype(jnp.float32)), axis=tuple(range(1, rows.ndim)))
        host = by_rows(lambda rows: total(self.finish(rows)), self.host, rows_of_piece(self.host))
        return jnp.concatenate([host, total(self.device)])

    def whole(self) -> Float[Array, "rows *shard"]:
        """All of it on the device."""
        return jnp.concatenate([self.finish(jax.device_put(self.host, DEVICE)), self.device])

    def update(self, update: WeightUpdate, state: WeightState, facts: UpdateFacts) -> WeightState:
        """`state` (in host memory) after a step."""
        rows = update.rows(state)
        assert rows is not None, "a rule that takes weights whole has its gradients on the device"
        state = streamed(lambda now, part: update(now, self.finish(part), facts), state, self.host, rows)
        if not self.device.shape[0]:
            return state
        state = jax.lax.optimization_barrier(state)
        return streamed(lambda now, part: update(now, part, facts), state, self.device, rows, self.host.shape[0])
