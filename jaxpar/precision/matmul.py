"""Matmuls in FP8: every linear map of a layer goes through `products`, forward and both gradients.

A tensor becomes codes of 8 bits and one scale, a power of two, so that scaling itself rounds nothing. Three products
follow from one matrix, each of two operands of 8 bits and summed in float32: the output, of input and weight (both
`E4M3`); the input's gradient, of the output's gradient (`Recipe.gradient`) and the weight; the weight's gradient, of
the input and the output's gradient. On GPUs XLA makes a call of cuBLASLt of each; on CPUs the codes are multiplied in
float32, so that a CPU computes the same numbers up to the order of sums.

**Scales do not depend on the layout.** A largest magnitude is taken over all ranks that hold a part of the tensor: rows
and tokens of the microbatch, columns of tensor ranks. `fp8_current` does so in each product, with a message of a few
numbers; `fp8_delayed` once per step (`jaxpar.precision.history`).

**A recomputed product has the scales of the first**: they are a named value, which every remat policy saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PyTree

from jaxpar.mesh.axes import AXES, varying_axes
from jaxpar.mesh.collective_matmul import GRADIENTS, OUTPUTS
from jaxpar.mesh.collectives import gather_sequence, reduce_max, scatter_sequence
from jaxpar.mesh.rings import ArrayTuple
from jaxpar.precision.amax import Amax, amax_of_group
from jaxpar.precision.recipe import E4M3, Recipe
from jaxpar.precision.scale import largest_of, quantise, scale_of
from jaxpar.precision.tiles import Operands
from pallas_kernels.varying import vary_alike

SCALES = "matmul_scales"
"""The name of the scales of a group, which every remat policy saves; and among what layers read of carried state the
scales of earlier steps, [layers, tensors]."""
WEIGHT_SCALES = "weight_scales"
"""Among what layers read of carried state the scales of matrices that are codes already: [layers, tensors], 0 of other
tensors; or by kind of layers `SquareScales`."""

TOKEN_AXES = tuple(axis for axis in AXES if axis != "pipe")
"""Axes that split activations and their gradients: by row, by token, or by column."""


class GroupScaling(NamedTuple):
    """How the products of one group of a layer's matmuls are scaled."""

    recipe: Recipe
    exact: Bool[Array, ""] | None = None
    """Whether they are not quantised in this layer; None if they are in all layers."""
    scales: Float[Array, " tensors"] | None = None
    """Of the input, of each matrix, and of the gradient of each output; None if they come from the tensors."""
    zeros: Amax | None = None
    """Zeros, whose cotangent is the largest magnitude of each of these tensors on this rank; None observes none."""
    of_codes: Float[Array, " matrices"] | tuple[Float[Array, "inputs outputs"], ...] | None = None
    """Scales of the matrices, or of their squares, where these are values of codes already; then none are quantised,
    nor observed."""

    @property
    def coded(self) -> bool:
        """Whether the matrices are values of codes already."""
        return self.of_codes is not None


# ---- one tensor


def largest_over(parts: Sequence[Array], axes: Sequence[str]) -> Float[Array, " tensors"]:
    """The largest magnitude of each tensor over the ranks of `axes`, that hold parts of it."""
    own = jnp.stack([largest_of(x) for x in parts])
    split = [axis for axis in axes if axis in varying_axes(own) and lax.axis_size(axis) > 1]
    return vary_alike((reduce_max(own, split) if split else own, *parts))[0]


# ---- the products of a group


def products(
    x: Float[Array, "batch part *inputs"],
    weights: Sequence[Float[Array, "..."]],
    scaling: GroupScaling,
    *,
    gathers: bool,
    scatters: bool = False,
) -> tuple[Float[Array, "batch seq ..."], ...]:
    """`x`, or the sequence that it is joined to, times each matrix [*inputs, *outputs]; where it `scatters`, this
    rank's part of the sequence of each product, summed over the tensor ranks.

    Sends `gather_sequence` of codes, one byte a number; its backward again, and `scatter_sequence` of the input's
    gradient in its own dtype. Scattered, the forward sends `scatter_sequence` of products in the dtype of `x`, and the
    backward `gather_sequence` of codes; with scales of tiles of gradients in their own dtype, because codes along both
    sides are as many bytes. Without given scales also a maximum of one number for each tensor.
    """
    if scaling.recipe.tiles is not None:
        exact, x, given, of_codes = vary_alike((scaling.exact, x, tuple(weights), scaling.of_codes))
        how = _How(scaling.recipe, gathers, False, scaling.coded)
        found: ArrayTuple = _products(how, x, given, of_codes, None, exact)
        return tuple(map(scatter_sequence, found)) if scatters else found
    x, given, scales, zeros = scales_of_group(x, weights, scaling)
    exact, x, given, scales, zeros = vary_alike((scaling.exact, x, given, scales, zeros))
    how = _How(scaling.recipe, gathers, scatters, scaling.coded)
    return _products(how, x, given, scales, zeros, exact)


def scales_of_group(
    x: jax.Array, weights: Sequence[jax.Array], scaling: GroupScaling
) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array, Amax | None]:
    """(input, weights, scales of both and perhaps of gradients, zeros of `scaling`), varying over the same axes."""
    x, given = vary_alike((x, tuple(weights)))
    scales = scaling.scales
    if scales is None:
        of_x = scale_of(largest_over([x], TOKEN_AXES), E4M3)
        of_weights = scaling.of_codes
        assert not isinstance(of_weights, tuple), "squares have scales with tiles alone"
        if of_weights is None:
            of_weights = scale_of(largest_over(given, ("tensor",)), E4M3)
        scales = checkpoint_name(jnp.concatenate(vary_alike((of_x, of_weights, x))[:2]), SCALES)
    return vary_alike((x, given, scales, scaling.zeros))


def codes_of(weights: Sequence[jax.Array], scales: jax.Array, coded: bool) -> list[jax.Array]:
    """The weights of a group as codes; `coded` is whether they are values of codes already."""
    each = enumerate(weights, start=1)
    return [w.astype(E4M3) if coded else quantise(w, scales[n], E4M3) for n, w in each]


def gradient_scales(dys: Sequence[jax.Array], scales: jax.Array, number: int, recipe: Recipe) -> jax.Array:
    """The scales of the gradients of the outputs of so many weights: those given, or of the gradients themselves."""
    if scales.shape[0] > 1 + number:
        return scales[1 + number :]
    return scale_of(largest_over(dys, TOKEN_AXES), recipe.gradient)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _How:
    recipe: Recipe
    gathers: bool
    """Whether the input is a rank's part of the sequence, which the tensor ranks join first."""
    scatters: bool
    """Whether the outputs are partial sums, of which each tensor rank keeps its part of the sequence."""
    coded: bool
    """Whether the weights are values of codes already."""

    @property
    def tiles(self) -> Operands | None:
        """The operands where tiles of them have a scale."""
        return None if self.recipe.tiles is None else Operands(self.recipe, self.gathers)

    def before(self, x: jax.Array) -> jax.Array:
        """The input, or its codes, as it is multiplied."""
        return gather_sequence(x) if self.gathers else x

    def after(self, y: jax.Array) -> jax.Array:
        """An output from its product."""
        return scatter_sequence(y) if self.scatters else y

    def before_backward(self, dy: jax.Array) -> jax.Array:
        """The gradient of an output, or its codes, as it is multiplied."""
        return gather_sequence(dy) if self.scatters else dy

    def after_backward(self, dx: jax.Array) -> jax.Array:
        """The gradient of the input from the sum of its products."""
        return scatter_sequence(dx) if self.gathers else dx


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(
    how: _How, x: jax.Array, weights: ArrayTuple, scales: PyTree[jax.Array], zeros: Amax | None, exact: jax.Array | None
) -> ArrayTuple:
    def quantised() -> tuple[jax.Array, ...]:
        if how.tiles is not None:
            return how.tiles.outputs(x, weights, scales)
        q = how.before(quantise(x, scales[0], E4M3))
        each = enumerate(codes_of(weights, scales, how.coded), start=1)
        found = (_output(q, w, scales[0] * scales[n], x.dtype) for n, w in each)
        return tuple(map(how.after, found))

    def exactly() -> tuple[jax.Array, ...]:
        whole = how.before(x)
        return tuple(how.after(_output(whole, w.astype(x.dtype), None, x.dtype)) for w in weights)

    return quantised() if exact is None else lax.cond(exact, exactly, quantised)


def _forward[*Saved](how: _How, *arguments: *Saved) -> tuple[ArrayTuple, tuple[*Saved]]:
    return _products(how, *arguments), arguments


def _backward(how: _How, saved: tuple[PyTree[jax.Array], ...], dys: ArrayTuple) -> tuple[PyTree[jax.Array], ...]:
    x, weights, scales, zeros, exact = saved
    recipe = how.recipe
    of_gradients = () if how.tiles is not None else gradient_scales(dys, scales, len(weights), recipe)

    # Magnitudes come out of the branch: XLA for CPUs does not order the collectives of a branch with a maximum that
    # does not depend on it, and ranks that run them in different orders wait for each other.
    def quantised() -> tuple[jax.Array, tuple[jax.Array, ...], Amax | None]:
        if how.tiles is not None:
            dx, dws = how.tiles.gradients(x, weights, scales, dys)
            return how.after_backward(dx), dws, None
        q = how.before(quantise(x, scales[0], E4M3))
        of_input, of_weights = [], []
        for n, (w, matrix, dy) in enumerate(zip(weights, codes_of(weights, scales, how.coded), dys, strict=True)):
            codes = quantise(dy, of_gradients[n], recipe.gradient)
            codes = how.before_backward(codes)
            of_input.append(_input_gradient(codes, matrix, scales[1 + n] * of_gradients[n], x))
            of_weights.append(_weight_gradient(q, codes, scales[0] * of_gradients[n], w))
        amax = amax_of_group(x, weights, dys, zeros, coded=how.coded)
        return how.after_backward(_sum(of_input)), tuple(of_weights), amax

    def exactly() -> tuple[jax.Array, tuple[jax.Array, ...], Amax | None]:
        whole, each = how.before(x), [how.before_backward(dy) for dy in dys]
        of_input = [_input_gradient(dy, w.astype(x.dtype), None, x) for dy, w in zip(each, weights, strict=True)]
        of_weights = tuple(_weight_gradient(whole, dy, None, w) for dy, w in zip(each, weights, strict=True))
        return how.after_backward(_sum(of_input)), of_weights, jax.tree.map(jnp.zeros_like, zeros)

    dx, dws, amax = quantised() if exact is None else lax.cond(exact, exactly, quantised)
    return dx, dws, None, amax, None


_products.defvjp(_forward, _backward)


def _sum(terms: list[jax.Array]) -> jax.Array:
    return sum(terms[1:], terms[0])


# ---- one product of two operands, codes or not


def _output(x: jax.Array, w: jax.Array, scale: jax.Array | None, dtype: DTypeLike) -> jax.Array:
    """[batch, seq, *outputs] of x [batch, seq, *inputs] and w [*inputs, *outputs]."""
    rows, matrix = _rows(x), w.reshape(_rows(x).shape[1], -1)
    return _dot(rows, matrix, (1, 0), scale, dtype, OUTPUTS).reshape(*x.shape[:2], *w.shape[x.ndim - 2 :])


def _input_gradient(dy: jax.Array, w: jax.Array, scale: jax.Array | None, x: jax.Array) -> jax.Array:
    """[batch, seq, *inputs], of the input whose part `x` is."""
    rows = _rows(dy)
    found = _dot(rows, w.reshape(-1, rows.shape[1]), (1, 1), scale, x.dtype, GRADIENTS)
    return found.reshape(*dy.shape[:2], *x.shape[2:])


def _weight_gradient(x: jax.Array, dy: jax.Array, scale: jax.Array | None, w: jax.Array) -> jax.Array:
    """Like `w`."""
    return _dot(_rows(x), _rows(dy), (0, 0), scale, w.dtype, GRADIENTS).reshape(w.shape)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _dot(
    a: jax.Array,
    b: jax.Array,
    contracted: tuple[int, int],
    scale: jax.Array | None,
    dtype: DTypeLike,
    of_codes: lax.Precision,
) -> jax.Array:
    """The product of two matrices over one dim of each; of codes times `scale`, which is a power of two."""
    dims = (((contracted[0],), (contracted[1],)), ((), ()))
    precision = None if scale is None else of_codes
    found = lax.dot_general(a, b, dims, precision, preferred_element_type=dtype)
    return found if scale is None else found * scale.astype(dtype)
