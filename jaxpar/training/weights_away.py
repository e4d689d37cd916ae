"""Layers whose weights and gradients rest in the host's memory: which these are, and how a step goes by them.

A layer's weights come from the float32 master weights, which rest there anyway, before its forward and again before its
backward, and are cast on the device. Its gradients go to the host as soon as they are made, and return twice, a piece
at a time: for their norm, and for the update. With several microbatches each fetches a layer's before that, to add to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from jaxpar.memory.chunks import groups_to_pin
from jaxpar.memory.streaming import DEVICE, by_rows, rows_of_piece, streamed, to_host
from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import Parted
from jaxpar.mesh.materialize import reduced_gradient, zero_sinks
from jaxpar.mesh.parameters import Tree, map_specs
from jaxpar.mesh.placements import Placement, local_shape

if TYPE_CHECKING:
    from jaxpar.training.step import TrainStep
    from jaxpar.training.weight_update import UpdateFacts, WeightState, WeightUpdate


class LayerBytes(NamedTuple):
    """Bytes of one layer on one device."""

    master: int
    weights: int
    """In storage placement and dtype."""
    gradients: int
    """Accumulated."""


def layer_bytes(step: TrainStep) -> LayerBytes:
    """Of each layer of `step`."""

    def size(placement: Placement) -> int:
        width = jnp.dtype(placement.dtype).itemsize
        local = lambda spec, layout: width * prod(local_shape(spec.shape, layout, step.plan.axes))
        sizes = map_specs(local, step.specs["layers"], placement.layout["layers"])
        return sum(jax.tree.leaves(sizes)) // step.order.layers_per_chunk

    roles = step.placements
    return LayerBytes(size(roles.optimizer), size(roles.storage), size(roles.gradient))


def away_gradient_bytes(step: TrainStep) -> int:
    """Bytes of gradients in host memory, of one device."""
    return step.layers_away * layer_bytes(step).gradients if step.layers_away else 0


def layers_that_stay(step: TrainStep, budget: int) -> tuple[int, ...]:
    """The layers whose weights and gradients stay on the device, `budget` bytes of them.

    A step uses layers from the first to the last and back, so each that stays saves the same, and the last ones do. The
    room of two layers that come and go is there besides, and takes these where all others stay.
    """
    sizes, layers = layer_bytes(step), step.order.layers_per_chunk
    each = sizes.weights + sizes.gradients
    return groups_to_pin([each] * layers, budget + 2 * each)


def layers_away(step: TrainStep) -> int:
    """How many layers, from the first on, have their weights and gradients in host memory."""
    if step.plan.weights_offload == "none":
        return 0
    storage, master = step.placements.storage.layout["layers"], step.placements.optimizer.layout["layers"]
    assert storage == master, "a layer that comes from the master weights is laid out as they are"
    return step.order.layers_per_chunk - len(layers_that_stay(step, step.plan.weights_resident))


def parted_sinks(step: TrainStep, layers: Parted) -> Parted:
    """What the gradients of the layers accumulate in: zeros on the device, and in host memory whatever is there,
    which the first gradients do not read."""
    like, structure = jax.tree.flatten(jax.eval_shape(lambda: zero_sinks(layers.host, step.placements, part="layers")))
    with jax.named_scope("gradients"):
        # XLA only allocates them, and weights of one shape once, to copy from, unless they differ.
        rows = [
            to_host(vary(jnp.full((step.layers_away, *a.shape[1:]), number, a.dtype))) for number, a in enumerate(like)
        ]
    return Parted(structure.unflatten(rows), zero_sinks(layers.device, step.placements, part="layers"))


def away_gradients(step: TrainStep, layers: Parted, device: Tree, scale: Float[Array, ""]) -> Tree:
    """An `AwayGradient` for each weight of the layers; `device` has that part of `layers` in optimizer placement."""
    roles = step.placements

    def one(host: jax.Array, device: jax.Array, *layouts: PartitionSpec) -> AwayGradient:
        finish = lambda rows: reduced_gradient(rows, *layouts, dtype=roles.optimizer.dtype) / scale
        return AwayGradient(host, device, finish)

    layouts = (role.layout["layers"] for role in (roles.compute, roles.gradient, roles.optimizer))
    return jax.tree.map(one, layers.host, device, *layouts)


@dataclass(frozen=True)
class AwayGradient:
    """The gradient of a weight of all layers, of which the first rows rest in host memory. A leaf of trees."""

    host: Float[Array, "away *shard"]
    """In gradient placement, as it accumulated."""
    device: Float[Array, "stay *shard"]
    """In optimizer placement."""
    finish: Callable[[Float[Array, "rows *shard"]], Float[Array, "rows *shard"]]
    """Rows of `host`, on the device, in optimizer placement."""

    def squares(self) -> Float[Array, " rows"]:
        """Sum of the squares of each row of this device's part, in float32."""
        total = lambda rows: jnp.sum(jnp.square(rows.astype(jnp.float32)), axis=tuple(range(1, rows.ndim)))
        away = by_rows(lambda rows: total(self.finish(rows)), self.host, rows_of_piece(self.host))
        return jnp.concatenate([away, total(self.device)])

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
