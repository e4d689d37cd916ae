"""Matmuls in FP8: one derivative for every group of a layer's linear maps, for every recipe of scales and every `Form`.

A tensor is quantized to 8-bit values and scales (`jaxpar.precision.scale`). A linear map has three products of two
quantized operands, summed in float32: output = input x weight (both `E4M3`); input's gradient = output's gradient
(`Recipe.gradient`) x weight; weight's gradient = input x output's gradient. A `Form` computes them: with the sequence
gathered before and scattered after each product, or as rings
(`jaxpar.precision.dense`), or for groups of rows (`jaxpar.precision.grouped`).

**Scales do not depend on the layout.** The amax is the maximum over all ranks that have a part of the tensor: rows and
tokens of the microbatch, columns of tensor ranks. `fp8_current` computes it in each product, with a message of a few
numbers; `fp8_delayed` once per step (`jaxpar.precision.history`); no tile is split between ranks.

**A recomputed product has the scales of the first one**: they are a named value, which every remat policy saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxpar.mesh.axes import vary, varying_axes
from jaxpar.mesh.rings import ArrayTuple, Cotangent, Perturbed, instantiated, perturbed_arguments
from jaxpar.precision.recipe import E4M3, Recipe
from jaxpar.precision.scale import QuantizedTensor, largest_of, quantize, quantize_tiles
from jaxpar.runtime.observed import Maxima
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp

SCALES = "matmul_scales"
"""Name, in the carried state that layers read, of the scales from earlier steps, [layers, tensors]."""
WEIGHT_SCALES = "weight_scales"
"""Name, in the carried state that layers read, of the scales of matrices that are quantized once a step: `StackScales`
by kind of layer."""


class Scales(NamedTuple):
    """The scales of a group's tensors that are known before its products; None: computed from the tensor itself."""

    input: Float[Array, "*rows"] | None = None
    """A scalar, or a scale for each row."""
    weights: Array | Sequence[Array] | None = None
    """The scale of each matrix, a scalar; or the scales of its square tiles."""
    gradients: Array | Sequence[Array] | None = None
    """The scale of the gradient of each output, a scalar; or the scales of its tiles."""

    def gradient_scale(self, n: int) -> jax.Array | None:
        """The scale of the gradient of an output."""
        return None if self.gradients is None else self.gradients[n]


NONE_KNOWN = Scales()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupScaling:
    """Scales of one group of a layer's matmuls."""

    recipe: Recipe = field(metadata={"static": True})
    exact: Bool[Array, ""] | None = None
    """Whether this layer's products are in the compute dtype instead; None if all layers are quantized."""
    scales: Scales = NONE_KNOWN
    zeros: Maxima | None = None
    """Zeros, whose cotangent is the amax of each tensor on this rank; None if no amax is recorded."""
    weights_quantized: bool = field(default=False, metadata={"static": True})
    """Whether the matrices are quantized already; then they are not quantized here, and their amax is not recorded."""

    def quantized(self, x: jax.Array, scale: jax.Array | None, form: str, *, by_row: bool = False) -> QuantizedTensor:
        """An input or gradient [..., rows, columns], quantized with its scale, or in tiles along rows or columns."""
        if self.recipe.tiles is not None:
            return quantize_tiles(x, self.recipe.tiles.along(by_row), form)
        assert scale is not None, "a tensor has a scale"
        return QuantizedTensor(quantize(x, scale, form), scale)

    def matrix(self, w: jax.Array, n: int, *, by_input: bool) -> QuantizedTensor:
        """Matrix `n` of the group, [..., inputs, outputs], quantized: in square tiles, or in tiles along its inputs or
        its outputs."""
        if self.recipe.tiles is not None and not self.weights_quantized:
            return quantize_tiles(w, self.recipe.tiles.weight_tile(by_input), E4M3)
        assert self.scales.weights is not None, "a matrix has a scale"
        scale = self.scales.weights[n]
        return QuantizedTensor(w.astype(E4M3) if self.weights_quantized else quantize(w, scale, E4M3), scale)


type GroupSizes = PyTree[Int[Array, " groups"]]
"""Rows of each group where `x` is rows of several; None where it is not."""


class Form(Protocol):
    """Static arguments of a group's matmuls."""

    def outputs(
        self, x: jax.Array, weights: ArrayTuple, scaling: GroupScaling, sizes: Int[Array, " groups"] | None
    ) -> ArrayTuple:
        """The quantized products of `x` and each of the weights."""
        ...

    def exact_outputs(self, x: jax.Array, weights: ArrayTuple, sizes: GroupSizes) -> ArrayTuple:
        """The same products without quantization, differentiable."""
        ...

    def gradient_scales(self, dys: Sequence[jax.Array], recipe: Recipe) -> PyTree:
        """The scales of the outputs' gradients `dys`; None where each of their tiles has its scale."""
        ...

    def gradients(
        self,
        perturbed: Perturbed,
        x: jax.Array,
        weights: ArrayTuple,
        scaling: GroupScaling,
        dys: list[jax.Array],
        sizes: GroupSizes,
    ) -> tuple[jax.Array | None, tuple[jax.Array | None, ...]]:
        """The gradients of the input and of each matrix, at least of those that are `perturbed`."""
        ...


def quantized_products(
    form: Form,
    x: Float[Array, "..."],
    weights: Sequence[Float[Array, "..."]],
    scaling: GroupScaling,
    sizes: Int[Array, " groups"] | None = None,
) -> ArrayTuple:
    """`x` times each of the matrices, forward and both gradients.

    Args:
        form: how the products are computed.
        x: the input.
        weights: the matrices.
        scaling: of the group; scales that are None are computed from the tensors, and not saved.
        sizes: rows of each group, where `x` is rows of several.
    """
    return _products(form, *vary_alike((x, tuple(weights), scaling, sizes)))


@custom_vjp(0)
def _products(
    form: Form, x: jax.Array, weights: ArrayTuple, scaling: GroupScaling, sizes: Int[Array, " groups"] | None
) -> ArrayTuple:
    quantized = lambda: form.outputs(x, weights, scaling, sizes)
    exactly = lambda: form.exact_outputs(x, weights, sizes)
    return quantized() if scaling.exact is None else lax.cond(scaling.exact, exactly, quantized)


def _forward(form: Form, *arguments: PyTree) -> tuple[ArrayTuple, tuple[PyTree, ...]]:
    perturbed, x, weights = perturbed_arguments(*arguments[:2])
    rest = jax.tree.map(lambda leaf: leaf.value, arguments[2:], is_leaf=lambda leaf: hasattr(leaf, "perturbed"))
    return _products(form, x, weights, *rest), (perturbed, x, weights, *rest)


def _backward(form: Form, saved: tuple[PyTree, ...], cotangents: tuple[Cotangent, ...]) -> tuple[PyTree, ...]:
    perturbed, x, weights, scaling, sizes = saved
    dys = [instantiated(dy, x) for dy in cotangents]
    if scaling.scales.gradients is None:  # not in the branch, because it may send
        gradients = form.gradient_scales(dys, scaling.recipe)
        known = replace(scaling, scales=scaling.scales._replace(gradients=gradients))
    else:
        known = scaling

    def quantized() -> tuple[PyTree, ...]:
        amax = _amax_of_group(x, weights, dys, scaling.zeros, weights_quantized=scaling.weights_quantized, sizes=sizes)
        return *form.gradients(perturbed, x, weights, known, dys, sizes), amax

    def exactly() -> tuple[PyTree, ...]:
        _, pullback = jax.vjp(lambda x, weights: form.exact_outputs(x, weights, sizes), x, weights)
        return *pullback(tuple(dys)), jax.tree.map(jnp.zeros_like, scaling.zeros)

    # Magnitudes come out of the branch: XLA for CPUs does not order the collectives of a branch with a maximum that
    # does not depend on it, and ranks that run them in different orders wait for each other.
    dx, dws, amax = quantized() if scaling.exact is None else lax.cond(scaling.exact, exactly, quantized)
    return dx, dws, replace(scaling, exact=None, scales=None, zeros=amax), None


_products.defvjp(_forward, _backward, symbolic_zeros=True)


def _amax_of_group(
    x: jax.Array,
    weights: Sequence[jax.Array],
    dys: Sequence[jax.Array],
    zeros: Maxima | None,
    *,
    weights_quantized: bool,
    sizes: Int[Array, " groups"] | None = None,
) -> Maxima | None:
    """The magnitudes of a group's input, weights and gradients of outputs on this rank, as a cotangent of `zeros`.

    Args:
        x: the input.
        weights: the matrices.
        dys: the gradients of the outputs.
        zeros: of the group; None where nothing observes it.
        weights_quantized: whether the weights are quantized values, whose amax is known: 0 is reported here.
        sizes: rows of each group, where `x` and `dys` are rows of several; rows behind these are not read.
    """
    if zeros is None:
        return None
    if sizes is not None:
        valid = (jnp.arange(len(x)) < sizes.sum())[:, None]
        x, *dys = (jnp.where(valid, rows, 0) for rows in (x, *dys))
    weight_amax = [jnp.float32(0) if weights_quantized else largest_of(w) for w in weights]
    tensors = vary_alike((largest_of(x), *weight_amax, *map(largest_of, dys)))
    return vary(jnp.stack(tensors), varying_axes(zeros))
