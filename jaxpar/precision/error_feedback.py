"""Error feedback: what quantised messages lack of a gradient is added to that of the next step.

A rank adds its *residual* to the gradient that it accumulated, before that is quantised, and stores what was lost as
the residual of the next step (EF-SGD: Karimireddy et al. 2019, arXiv:1901.09847; 1-bit Adam: Tang et al. 2021,
arXiv:2102.02888, has one residual for each of two exchanges). All that is lost on the way is in one residual here: what
a rank's own codes lack, in each part of the gradient, and what the codes of sums lack that it received and sends on, in
its own part. So the gradients that optimizers get, summed over steps, are the exact ones but for one residual, the sum
of those of all ranks.

Codes are rounded to the nearest, not stochastically: that loses less, and a bias is made good.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from jaxpar.config.plan import AxisSizes
from jaxpar.mesh.axes import SHARD_AXES, vary
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.materialize import reduced_gradient
from jaxpar.mesh.parameters import ParamSpec, Partitions, Specs, Weights, map_specs, only
from jaxpar.mesh.placements import Placements, added_dim, one_message_each, unreduced_axes
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.mesh.wire.travel import reduce_codes, scatter_codes
from jaxpar.mesh.wire.wire import Wire
from jaxpar.runtime.carried import Reduction

DATA = ("replica", *SHARD_AXES)


@dataclass(frozen=True, eq=False)
class ErrorFeedback(Reduction):
    """The residual of gradients, from step to step."""

    specs: Specs
    """The trained weights."""
    placements: Placements
    sizes: AxisSizes
    dtype: str
    """The dtype of a residual: that in which gradients accumulate."""
    name = "residual"
    title = "residual of quantised gradients"

    def init(self) -> Weights:
        return no_residual(self.specs, self.partitions(), self.sizes, self.dtype)

    def partitions(self) -> Any:
        return residual_layout(self.specs, self.placements)

    def reduce(self, accumulated: Weights, state: Weights, scale: Float[Array, ""]) -> tuple[Weights, Weights]:
        return to_optimizer_with_feedback(accumulated, state, self.placements, scale)


def residual_layout(specs: Specs, placements: Placements) -> Partitions:
    """The partition of the residual of each weight whose gradient is quantised, in place of others None.

    A residual has the dims of its weight, and a last one for the ranks that hold partial gradients of it.
    """

    def one(spec: ParamSpec, compute: PartitionSpec, wire: Wire) -> PartitionSpec | None:
        dims = [axes_of_dim(compute, dim) or None for dim in range(len(spec.shape))]
        return PartitionSpec(*dims, unreduced_axes(compute)) if wire.feedback else None

    return map_specs(one, specs, only(placements.compute.layout, specs), only(placements.wires, specs))


def no_residual(specs: Specs, layout: Partitions, sizes: AxisSizes, dtype: str) -> Weights:
    """Zeros, [*weight, rank]. To be traced."""

    def one(spec: ParamSpec, where: PartitionSpec | None) -> jax.Array | None:
        if where is None:
            return None
        ranks = prod(sizes[axis] for axis in axes_of_dim(where, len(spec.shape)))
        return jnp.zeros((*spec.shape, ranks), dtype)

    return map_specs(one, specs, layout)


def to_optimizer_with_feedback(
    gradients: Weights, residual: Weights, placements: Placements, scale: Float[Array, ""]
) -> tuple[Weights, Weights]:
    """`to_optimizer` of gradients, divided by the loss scale, and the residual of the next step.

    `residual` is without the loss scale. Bytes: those of `to_optimizer`.
    """
    leaves, structure = jax.tree.flatten(gradients)
    roles = placements.compute, placements.gradient, placements.optimizer
    trees = [only(tree, gradients) for tree in (*(role.layout for role in roles), placements.wires)]
    found, left = [], []
    for grad, before, *how in zip(leaves, *map(structure.flatten_up_to, (residual, *trees)), strict=True):
        dtype = placements.optimizer.dtype
        if before is None:
            found.append(reduced_gradient(grad, *how, dtype=dtype) / scale)
            left.append(None)
            continue
        summed, lost = _reduced(grad.astype(jnp.float32) + before[..., 0] * scale, *how)
        found.append(summed.astype(jnp.dtype(dtype)) / scale)
        left.append((lost / scale).astype(before.dtype)[..., None])
    return structure.unflatten(found), structure.unflatten(left)


def _reduced(
    grad: jax.Array, compute: PartitionSpec, gradient: PartitionSpec, optimizer: PartitionSpec, wire: Wire
) -> tuple[Float[Array, "*shard"], Float[Array, "*weight"]]:
    """The sum in optimizer placement, and this rank's part of the error, in the shape of `grad`."""
    dim, axes = added_dim(gradient, optimizer) or (0, ())
    rest = tuple(axis for axis in unreduced_axes(compute) if axis not in axes)
    return _scattered(grad, dim, one_message_each(axes), rest, wire)


def _scattered(
    grad: jax.Array, dim: int, messages: tuple[tuple[str, ...], ...], rest: tuple[str, ...], wire: Wire
) -> tuple[Float[Array, "*shard"], Float[Array, "*weight"]]:
    """`_reduced`: scattered along `dim` over the axes of each message, then summed over the `rest`."""
    if not messages:
        return _summed(grad, rest, wire)
    axes, *later_axes = messages
    own, lost = scatter_codes(grad, axes, dim, wire)
    summed, later = _scattered(own, dim, tuple(later_axes), rest, wire)
    place = lax.axis_index(axes) * own.shape[dim]
    there = lax.dynamic_slice_in_dim(lost, place, own.shape[dim], dim)
    return summed, lax.dynamic_update_slice_in_dim(lost, there + later, place, dim)


def _summed(grad: jax.Array, rest: tuple[str, ...], wire: Wire) -> tuple[jax.Array, jax.Array]:
    """The sum over the axes `rest`, and this rank's part of the error."""
    alike = tuple(axis for axis in rest if axis not in DATA)
    summed, later = reduce_codes(reduce_sum(grad, alike), tuple(axis for axis in rest if axis in DATA), wire)
    later = vary(later)
    if alike:  # these ranks hold the same sum, and one of them its error
        later = jnp.where(lax.axis_index(alike) == 0, later, 0.0)
    return summed, later
