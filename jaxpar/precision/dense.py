"""Quantized products of a layer's matrices, with the exchange of the sequence between tensor ranks around them.

`Whole` gathers the sequence before whole products and scatters it behind them; `Ring` passes parts from rank to rank
beside the products of what has arrived (`jaxpar.mesh.collective_matmul`). Inputs on their way into a layer, and
gradients of what leaves it, travel as quantized values with the scale of the whole tensor, so both have the same bits.
On GPUs XLA makes a call of cuBLASLt of each product; on CPUs quantized values are multiplied in float32, so that a CPU
computes the same numbers up to the order of sums.

Tiles lie along the side that a product sums over. Inputs are quantized along their columns for the output and along
tokens for the weight's gradient; gradients of outputs along columns for the input's gradient and along tokens for the
weight's. Squares of a matrix are the same in both products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from jaxpar.config.axes import STREAM_AXES
from jaxpar.mesh.collective_matmul import (
    GRADIENTS,
    OUTPUTS,
    gathered_gradients,
    gathered_products,
    product,
    scattered_gradients,
    scattered_products,
)
from jaxpar.mesh.collectives import gather_sequence, scatter_sequence
from jaxpar.mesh.rings import ArrayTuple, Perturbed
from jaxpar.precision.matmul import GroupScaling, GroupSizes, Scales, quantized_products
from jaxpar.precision.recipe import E4M3, Recipe
from jaxpar.precision.scale import QuantizedTensor, largest_over, scale_of
from jaxpar.runtime.passes import ALWAYS_SAVED
from pallas_kernels.tiled_matmul import tiled_matmul
from pallas_kernels.varying import vary_alike


def products(
    x: Float[Array, "batch part *inputs"],
    weights: Sequence[Float[Array, "..."]],
    scaling: GroupScaling,
    *,
    gathers: bool,
    scatters: bool = False,
    chunks: int | None = None,
) -> tuple[Float[Array, "batch seq ..."], ...]:
    """`x`, or with `gathers` the sequence that it is joined to, times each matrix [*inputs, *outputs]; where it
    `scatters`, this rank's part of the sequence of each product, summed over the tensor ranks.

    Sends `gather_sequence` of quantized values, one byte a number; its backward again, and `scatter_sequence` of the
    input's gradient in its own dtype. Scattered, the forward sends `scatter_sequence` of products in the dtype of `x`,
    and the backward `gather_sequence` of quantized values; with tiles of gradients in their own dtype, because values
    quantized along both sides are as many bytes. Without scales of earlier steps or tiles also a maximum of one number
    for each tensor. With `chunks` of each rank's part the exchange is a ring.
    """
    scaling = _with_scales(x, weights, scaling)
    form = Whole(gathers, scatters) if chunks is None else Ring(chunks, scatters)
    return quantized_products(form, x, weights, scaling)


def _with_scales(x: jax.Array, weights: Sequence[jax.Array], scaling: GroupScaling) -> GroupScaling:
    """`scaling` with the scales of the input and the matrices, which are found here where a tensor has one."""
    of_weights = scaling.scales.weights
    if scaling.recipe.tiles is not None or scaling.scales.input is not None:
        return scaling
    x, weights = vary_alike((x, tuple(weights)))
    of_x = scale_of(largest_over([x], STREAM_AXES), E4M3)
    if of_weights is None:
        of_weights = scale_of(largest_over(weights, ("tensor",)), E4M3)
    scales = checkpoint_name(jnp.concatenate(vary_alike((of_x, jnp.asarray(of_weights), x))[:2]), ALWAYS_SAVED)
    return replace(scaling, scales=Scales(scales[0], scales[1:]))


class Dense:
    """The products of matrices that all tokens share."""

    def gradient_scales(self, dys: Sequence[jax.Array], recipe: Recipe) -> PyTree:
        """A scale for the gradient of each output, over all tokens."""
        return None if recipe.tiles is not None else scale_of(largest_over(dys, STREAM_AXES), recipe.gradient)

    def exact_outputs(self, x: jax.Array, weights: ArrayTuple, sizes: GroupSizes) -> ArrayTuple:
        """The outputs where nothing is quantized."""
        raise AssertionError("ranks in different branches would meet in each other's permutes")


# ---- whole products


@jax.tree_util.register_static
@dataclass(frozen=True)
class Whole(Dense):
    """Implements `Form`: collectives before and after whole products."""

    gathers: bool
    """Whether the input is a rank's part of the sequence, which the tensor ranks join first."""
    scatters: bool
    """Whether the outputs are partial sums, of which each tensor rank keeps its part of the sequence."""

    def outputs(self, x: jax.Array, weights: ArrayTuple, scaling: GroupScaling, sizes: GroupSizes) -> ArrayTuple:
        """The outputs."""
        del sizes
        quantized = _rows(scaling.quantized(_flat(x), scaling.scales.input, E4M3), joins=self.gathers)
        outputs = []
        for n, w in enumerate(weights):
            matrix = scaling.matrix(_matrix(w, x), n, by_input=True)
            y = _product(quantized, matrix, (1, 0), x.dtype, OUTPUTS, scaling.recipe.backend)
            y = y.reshape(x.shape[0], -1, *w.shape[x.ndim - 2 :])
            outputs.append(scatter_sequence(y) if self.scatters else y)
        return tuple(outputs)

    def exact_outputs(self, x: jax.Array, weights: ArrayTuple, sizes: GroupSizes) -> ArrayTuple:
        """The outputs where nothing is quantized."""
        del sizes
        joined = gather_sequence(x) if self.gathers else x
        ys = tuple(product(joined, w) for w in weights)
        return tuple(map(scatter_sequence, ys)) if self.scatters else ys

    def gradients(
        self,
        perturbed: Perturbed,
        x: jax.Array,
        weights: ArrayTuple,
        scaling: GroupScaling,
        dys: list[jax.Array],
        sizes: GroupSizes,
    ) -> tuple[jax.Array, ArrayTuple]:
        """All gradients."""
        del perturbed, sizes
        recipe, tiled = scaling.recipe, scaling.recipe.tiles is not None
        inputs = _rows(scaling.quantized(_flat(x), scaling.scales.input, E4M3, by_row=True), joins=self.gathers)
        terms, dws = [], []
        for n, (w, dy) in enumerate(zip(weights, dys, strict=True)):
            scale = scaling.scales.gradient_scale(n)
            dy = _flat(gather_sequence(dy) if self.scatters and tiled else dy)
            quantized = _rows(scaling.quantized(dy, scale, recipe.gradient), joins=self.scatters and not tiled)
            by_row = _rows(scaling.quantized(dy, scale, recipe.gradient, by_row=True)) if tiled else quantized
            matrix = scaling.matrix(_matrix(w, x), n, by_input=False)
            terms.append(_product(quantized, matrix, (1, 1), x.dtype, GRADIENTS, recipe.backend))
            dws.append(_product(inputs, by_row, (0, 0), w.dtype, GRADIENTS, recipe.backend).reshape(w.shape))
        dx = sum(terms[1:], terms[0]).reshape(x.shape[0], -1, *x.shape[2:])
        return scatter_sequence(dx) if self.gathers else dx, tuple(dws)


def _product(
    a: QuantizedTensor,
    b: QuantizedTensor,
    contracted: tuple[int, int],
    dtype: DTypeLike,
    precision: lax.Precision,
    backend: str,
) -> jax.Array:
    """The product of two matrices over one dim of each, summed in float32."""
    if a.tiled:
        left, right = (
            quantized if dim else QuantizedTensor(*(x.T for x in quantized))
            for quantized, dim in zip((a, b), contracted, strict=True)
        )
        return tiled_matmul(*left, *right, dtype=dtype, implementation=backend)
    dims = (((contracted[0],), (contracted[1],)), ((), ()))
    product = lax.dot_general(a.values, b.values, dims, precision, preferred_element_type=dtype)
    return product * (a.scales * b.scales).astype(dtype)


def _flat(x: jax.Array) -> jax.Array:
    """Returns `x` as [batch * seq, columns]."""
    return x.reshape(*x.shape[:2], -1)


def _rows(quantized: QuantizedTensor, *, joins: bool = False) -> QuantizedTensor:
    """[batch, seq, columns] as [batch * seq, columns], of the joined sequence if it `joins`. No tile has tokens of two
    rows of the batch."""
    one = lambda x: (y := gather_sequence(x) if joins else x).reshape(y.shape[0] * y.shape[1], -1)
    return QuantizedTensor(one(quantized.values), one(quantized.scales) if quantized.tiled else quantized.scales)


def _matrix(w: jax.Array, x: jax.Array) -> jax.Array:
    """[inputs, outputs] of a matrix [*inputs, *outputs] of the input `x`."""
    return w.reshape(_flat(x).shape[2], -1)


# ---- rings


@jax.tree_util.register_static
@dataclass(frozen=True)
class Ring(Dense):
    """Implements `Form`: the sequence passes round, on its way in or, where it `scatters`, out."""

    chunks: int
    """Chunks of a rank's part of the sequence."""
    scatters: bool

    def outputs(self, x: jax.Array, weights: ArrayTuple, scaling: GroupScaling, sizes: GroupSizes) -> ArrayTuple:
        """The outputs."""
        del sizes
        quantized = scaling.quantized(x, scaling.scales.input, E4M3)
        matrices = [scaling.matrix(w, n, by_input=True) for n, w in enumerate(weights)]
        values = [matrix.values for matrix in matrices]
        if self.scatters:
            products = (scattered_products(self.chunks, [quantized.values], values, x.dtype),)
        else:
            products = gathered_products(self.chunks, quantized.values, values, x.dtype)
        return tuple(
            y * (quantized.scales * matrix.scales).astype(x.dtype) for y, matrix in zip(products, matrices, strict=True)
        )

    def gradients(
        self,
        perturbed: Perturbed,
        x: jax.Array,
        weights: ArrayTuple,
        scaling: GroupScaling,
        dys: list[jax.Array],
        sizes: GroupSizes,
    ) -> tuple[jax.Array | None, tuple[jax.Array | None, ...]]:
        """The gradients of `perturbed` arguments."""
        del sizes
        inputs = scaling.quantized(x, scaling.scales.input, E4M3)
        matrices = [scaling.matrix(w, n, by_input=False) for n, w in enumerate(weights)]
        form, of_dy = scaling.recipe.gradient, scaling.scales.gradient_scale
        each = [scaling.quantized(dy, of_dy(n), form) for n, dy in enumerate(dys)]
        values, quantized = [matrix.values for matrix in matrices], [dy.values for dy in each]
        scales = [dy.scales * matrix.scales for dy, matrix in zip(each, matrices, strict=True)]
        if self.scatters:
            dxs, sums = scattered_gradients(self.chunks, perturbed, [inputs.values], values, quantized[0], x.dtype)
            dx = None if dxs is None else dxs[0] * scales[0].astype(x.dtype)
        else:
            dx, sums = gathered_gradients(self.chunks, perturbed, inputs.values, values, quantized, x.dtype, scales)
        pairs = zip(sums, perturbed.select(each), perturbed.select(weights), strict=True)
        dws = [(total * (inputs.scales * dy.scales)).reshape(w.shape) for total, dy, w in pairs]
        return dx, perturbed.gradients(dws, weights)
