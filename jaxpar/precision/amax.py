"""Largest magnitudes (amax) of the tensors of quantised matmuls, which scales of later steps are computed from.

They leave the backward as cotangents of zeros, and accumulate over layers, microbatches and ranks as a maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxpar.mesh.axes import AXES, vary, varying_axes
from jaxpar.mesh.collectives import reduce_max
from jaxpar.precision.scale import largest_of
from pallas_kernels.varying import vary_alike


class Amax(NamedTuple):
    """The largest magnitude of each tensor of a layer, or of each layer and tensor."""

    values: Float[Array, "*layers tensors"]

    def with_layer(self, number: jax.Array, new: Amax, counted: Bool[Array, ""]) -> Amax:
        """All layers, with the magnitudes of one pass through layer `number` where it is counted."""
        return Amax(self.values.at[number].max(jnp.where(counted, new.values, 0)))

    def joined_to(self, other: Amax) -> Amax:
        """The magnitudes of two uses of the same tensors."""
        return Amax(jnp.maximum(self.values, other.values))

    def over_ranks(self, others: Amax | None) -> Amax:
        """The magnitudes of all ranks, the same on all of them, joined to `others`."""
        # One message, after all branches of the layers: see docs/decisions.md.
        joined = self if others is None else self.joined_to(others)
        return Amax(reduce_max(joined.values, AXES))


def zero_amax(*shape: int) -> Amax:
    """Zeros [*layers, tensors]."""
    return Amax(jnp.zeros(shape, jnp.float32))


def amax_of_group(
    x: jax.Array,
    weights: Sequence[jax.Array],
    dys: Sequence[jax.Array],
    zeros: Amax | None,
    *,
    coded: bool,
    sizes: Int[Array, " groups"] | None = None,
    by_derivative: bool = False,
) -> Amax | None:
    """The magnitudes of a group's input, weights and gradients of outputs on this rank, as a cotangent of `zeros`.

    Args:
        x: the input.
        weights: the matrices.
        dys: the gradients of the outputs.
        zeros: of the group; None where nothing observes it.
        coded: whether the weights are values of codes already, whose magnitudes are known: theirs are 0 here.
        sizes: rows of each group, where `x` and `dys` are rows of several; rows behind these are not read.
        by_derivative: whether the magnitudes of `dys` are computed where these are made (`observing_gradients`).
    """
    if zeros is None:
        return None
    if sizes is not None:
        there = (jnp.arange(len(x)) < sizes.sum())[:, None]
        x, *dys = (jnp.where(there, rows, 0) for rows in (x, *dys))
    of_weights = [jnp.float32(0) if coded else largest_of(w) for w in weights]
    of_dys = [jnp.float32(0) if by_derivative else largest_of(dy) for dy in dys]
    return Amax(_stacked((largest_of(x), *of_weights, *of_dys), zeros.values))


def observing_gradients(
    function: Callable[..., Float[Array, "..."]], zeros: Float[Array, " inputs"], *inputs: Float[Array, "..."]
) -> Float[Array, "..."]:
    """An elementwise `function` of `inputs`. The cotangent of `zeros` is the largest magnitude of the gradient of each
    input on this rank.

    The derivative computes these gradients twice, in float32 for their magnitudes. With one use each, XLA writes no
    array of them: one kernel reads what the derivative needs, and makes their codes and magnitudes. A gradient with two
    uses it writes, and reads again.
    """
    return _observing(function, *vary_alike((zeros, *inputs)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _observing(function: Callable[..., jax.Array], zeros: jax.Array, *inputs: jax.Array) -> jax.Array:
    del zeros
    return function(*inputs)


def _observing_forward(
    function: Callable[..., jax.Array], zeros: jax.Array, *inputs: jax.Array
) -> tuple[jax.Array, tuple[PyTree, ...]]:
    out, pullback = jax.vjp(function, *inputs)
    return out, (pullback, zeros, inputs)


def _observing_backward(
    function: Callable[..., jax.Array], saved: tuple[PyTree, ...], d_out: jax.Array
) -> tuple[jax.Array, ...]:
    pullback, zeros, inputs = saved
    wide = lambda x: x.astype(jnp.float32)
    _, in_float32 = jax.vjp(function, *map(wide, inputs))
    largest = map(largest_of, in_float32(wide(d_out)))
    rounded = [amax.astype(x.dtype).astype(jnp.float32) for amax, x in zip(largest, inputs, strict=True)]
    return _stacked(rounded, zeros), *pullback(d_out)


_observing.defvjp(_observing_forward, _observing_backward)


def _stacked(tensors: Sequence[jax.Array], like: jax.Array) -> jax.Array:
    """The magnitudes of tensors as one cotangent of `like`."""
    return vary(jnp.stack(vary_alike(tuple(tensors))), varying_axes(like))
