"""Largest magnitudes (amax) of the tensors of quantised matmuls, which scales of later steps are computed from.

They leave the backward as cotangents of zeros, and accumulate over layers, microbatches and ranks as a maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

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
) -> Amax | None:
    """The magnitudes of a group's input, weights and gradients of outputs on this rank, as a cotangent of `zeros`.

    Args:
        x: the input.
        weights: the matrices.
        dys: the gradients of the outputs.
        zeros: of the group; None where nothing observes it.
        coded: whether the weights are quantised values, whose magnitudes are known: theirs are 0 here.
        sizes: rows of each group, where `x` and `dys` are rows of several; rows behind these are not read.
    """
    if zeros is None:
        return None
    if sizes is not None:
        there = (jnp.arange(len(x)) < sizes.sum())[:, None]
        x, *dys = (jnp.where(there, rows, 0) for rows in (x, *dys))
    of_weights = [jnp.float32(0) if coded else largest_of(w) for w in weights]
    tensors = vary_alike((largest_of(x), *of_weights, *map(largest_of, dys)))
    return Amax(vary(jnp.stack(tensors), varying_axes(zeros.values)))
