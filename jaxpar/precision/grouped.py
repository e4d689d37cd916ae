"""Quantized products of routed experts, with scales of tensors, of rows or of tiles.

**Scales of earlier steps** are one for each tensor of a layer: the rows of all experts, each stack of matrices, the
gradients of each output.

**Current scaling** is by the tensor's own magnitude. A stack of matrices has one scale. Rows have one each: they come
from everywhere, in slices and in rounds of the exchange, and no rank has seen all of them when the first is multiplied.
A row's scale is that of its numbers, and so the same on every layout, in every slice and round. Tensor ranks have a
part of the hidden activation and of its gradient, and find the maximum of each row together: 4 bytes a row. Gradients
of matrices multiply what the quantized values stand for, in the compute dtype: a row's scale is no factor of a sum over
rows.

**Tiles** are numbers of one row for the output and for the gradient of rows, so that a row has the same scales on every
layout. The gradient of an expert's matrix sums over the expert's rows, and a tile is neighbouring ones of a column,
counted from the expert's first: none has rows of two experts, and the last tile of an expert is filled up with zeros.
Neighbours depend on the layout. Scales are powers of two, so that this moves only numbers that are too small for the
format's full precision, 2^-14 of their tile's largest and less. 8-bit units sum along neighbouring bytes alone, so the
kernel for the gradient of a matrix takes both operands transposed: XLA writes them in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxpar.mesh.rings import ArrayTuple, Perturbed
from jaxpar.precision.matmul import GroupScaling, GroupSizes, Scales, quantized_products
from jaxpar.precision.recipe import E4M3, Recipe
from jaxpar.precision.scale import QuantizedTensor, largest_over, max_over, quantize_tiles, scale_of
from jaxpar.runtime.passes import ALWAYS_SAVED
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_matmul import registry as exact
from pallas_kernels.grouped_matmul.api import Static, request_of
from pallas_kernels.grouped_matmul.blocks import row_blocks
from pallas_kernels.tiled_matmul import tiled_matmul, tiled_weight_gradients
from pallas_kernels.tiled_matmul.reference import numbers

EXPERT_AXES = ("expert", "tensor")
"""Axes that split the matrices of a layer's experts, gathered from those of ZeRO."""
TILE = 128
"""Numbers for which the kernel takes a scale."""


def scales_of_experts(weights: Sequence[Float[Array, "experts inputs outputs"]], scaling: GroupScaling) -> Scales:
    """The scales that all rounds of a layer share: those of earlier steps, or of its matrices.

    Sends a maximum of one number for each matrix over the ranks of the experts, if these are not known yet.
    """
    if scaling.recipe.tiles is not None or scaling.scales.weights is not None:
        return scaling.scales
    return Scales(weights=checkpoint_name(scale_of(largest_over(weights, EXPERT_AXES), E4M3), ALWAYS_SAVED))


def grouped_products(
    x: Float[Array, "rows inputs"],
    weights: Sequence[Float[Array, "experts inputs outputs"]],
    sizes: Int[Array, " experts"],
    scaling: GroupScaling,
    *,
    inward: bool,
    implementation: str,
    expected: int,
) -> tuple[Float[Array, "rows outputs"], ...]:
    """`x` times each of the matrices of its rows' experts, and gradients, quantized alike; 0 behind the last expert.

    Sends a maximum of each row over the tensor ranks that have parts of it, unless tiles have scales or these come
    from earlier steps.

    Args:
        x: Rows in the order of the experts.
        weights: Of one or more stacks of matrices.
        sizes: Rows of each expert.
        scaling: Of the group; its scales are those of `scales_of_experts`.
        inward: Whether tensor ranks split the outputs of the matrices; else their inputs.
        implementation: Of `pallas_kernels.grouped_matmul`, for what the quantized values stand for where no kernel
            multiplies these.
        expected: Rows that are expected, as in `pallas_kernels.grouped_matmul.grouped_matmul`.
    """
    name = exact.REGISTRY.chosen(implementation, request_of(x, weights[0], None)).name
    form, scales = Experts(Static(name, expected, False), inward), scaling.scales
    if scaling.recipe.tiles is None and scales.input is None:
        (of_x,) = _scales_of_rows([lax.stop_gradient(x)], E4M3, split=not inward)
        scaling = replace(scaling, scales=scales._replace(input=checkpoint_name(of_x, ALWAYS_SAVED)))
    return quantized_products(form, x, weights, scaling, sizes)


def _scales_of_rows(each: Sequence[jax.Array], form: str, *, split: bool) -> list[Float[Array, " rows"]]:
    """The scale of each row of some arrays, in one message if tensor ranks have parts of rows (`split`)."""
    local = jnp.stack([jnp.max(jnp.abs(x), axis=1).astype(jnp.float32) for x in each])
    return list(scale_of(max_over(local, ("tensor",) if split else (), each), form))


@jax.tree_util.register_static
@dataclass(frozen=True)
class Experts:
    """Implements `Form` for rows that are sorted by expert, and stacks of matrices [experts, inputs, outputs]."""

    grouped: Static
    inward: bool
    """Whether tensor ranks split the outputs; else the inputs."""

    def outputs(self, x: jax.Array, weights: ArrayTuple, scaling: GroupScaling, sizes: GroupSizes) -> ArrayTuple:
        """The outputs."""
        rows = _rows(scaling, x, scaling.scales.input, E4M3)
        each = (_transposed(scaling.matrix(w, n, by_input=True)) for n, w in enumerate(weights))
        return tuple(self._times(scaling.recipe, rows, matrices, sizes, x) for matrices in each)

    def exact_outputs(self, x: jax.Array, weights: ArrayTuple, sizes: GroupSizes) -> ArrayTuple:
        """The outputs where nothing is quantized."""
        name, expected, _ = self.grouped
        return tuple(grouped_matmul(x, w, sizes, implementation=name, expected=expected) for w in weights)

    def gradient_scales(self, dys: Sequence[jax.Array], recipe: Recipe) -> list[jax.Array] | None:
        """One for each row."""
        return None if recipe.tiles is not None else _scales_of_rows(dys, recipe.gradient, split=self.inward)

    def gradients(
        self, perturbed: Perturbed, x: jax.Array, weights: ArrayTuple, scaling: GroupScaling, dys: list[jax.Array],
        sizes: GroupSizes,
    ) -> tuple[jax.Array, ArrayTuple]:  # fmt: skip
        """All gradients."""
        del perturbed
        form, of_dy = scaling.recipe.gradient, scaling.scales.gradient_scale
        quantized = [_rows(scaling, dy, of_dy(n), form) for n, dy in enumerate(dys)]
        matrices = [scaling.matrix(w, n, by_input=False) for n, w in enumerate(weights)]
        terms = [self._times(scaling.recipe, *pair, sizes, x) for pair in zip(quantized, matrices, strict=True)]
        if scaling.recipe.tiles is None:
            rows = _numbers(_rows(scaling, x, scaling.scales.input, E4M3), x)
            dws = [self.grouped.of_weights(rows, _numbers(dy, x), sizes) for dy in quantized]
        else:
            tile = scaling.recipe.tiles.size
            places, backend = tile_aligned_places(sizes, len(x), tile), self._backend(scaling.recipe)
            by_expert = lambda x, form: quantize_tiles(_filled(x, places), (tile, 1), form)
            rows, each = by_expert(x, E4M3), (by_expert(dy, form) for dy in dys)
            dws = [tiled_weight_gradients(*rows, *dy, places.sizes, x.dtype, **backend) for dy in each]
        return sum(terms[1:], terms[0]), tuple(dws)

    def _times(
        self, recipe: Recipe, rows: QuantizedTensor, matrices: QuantizedTensor, sizes: jax.Array, like: jax.Array
    ) -> jax.Array:
        """Rows [rows, inputs] times the matrices of their experts, [experts, outputs, inputs], in the dtype of `like`;
        a scale of all is that of every tile."""
        if recipe.tiles is None:
            (m, inputs), (experts, outputs, _) = rows.values.shape, matrices.values.shape
            full = inputs % TILE == 0 and outputs % TILE == 0
            across, down = (inputs // TILE, outputs // TILE) if full else (1, 1)
            rows = QuantizedTensor(rows.values, jnp.broadcast_to(rows.scales, (m, across)))
            matrices = QuantizedTensor(matrices.values, jnp.broadcast_to(matrices.scales, (experts, down, across)))
        return tiled_matmul(*rows, *matrices, sizes, like.dtype, **self._backend(recipe))

    def _backend(self, recipe: Recipe) -> dict[str, Any]:
        """The backend, as arguments of `pallas_kernels.tiled_matmul`."""
        name = grouped_backend(recipe.backend)
        return {"implementation": name, "numbers_by": self.grouped.name, "expected": self.grouped.expected}


def grouped_backend(name: str) -> str:
    """The implementation of products of groups where `name` is that of dense ones: cuDNN has no grouped product."""
    return "auto" if name == "cudnn" else name


def _rows(scaling: GroupScaling, x: jax.Array, scale: jax.Array | None, form: str) -> QuantizedTensor:
    """Rows with a scale for all, each, or each tile of one."""
    return scaling.quantized(x, None if scale is None else scale.reshape(-1, 1), form)


def _numbers(quantized: QuantizedTensor, like: jax.Array) -> jax.Array:
    """The numbers that rows with a scale for all or each stand for."""
    return numbers(quantized.values, jnp.broadcast_to(quantized.scales, (len(quantized.values), 1))).astype(like.dtype)


def _transposed(quantized: QuantizedTensor) -> QuantizedTensor:
    return QuantizedTensor(quantized.values.mT, quantized.scales.mT if quantized.tiled else quantized.scales)


class Places(NamedTuple):
    """Offsets of the experts' rows, each expert's in full tiles."""

    row: Int[Array, " places"]
    """The row at each place; -1 is none."""
    sizes: Int[Array, " experts"]
    """Places of each expert, a multiple of a tile."""


def tile_aligned_places(sizes: Int[Array, " experts"], rows: int, tile: int) -> Places:
    """The places of `rows` rows: those of each expert from the first row of a tile on."""
    blocks = row_blocks(sizes, rows, tile)
    within = jnp.arange(tile, dtype=jnp.int32)
    row = jnp.where(within < blocks.high[:, None], blocks.start[:, None] + within, -1)
    used = (blocks.high > 0)[:, None] & (blocks.group[:, None] == jnp.arange(sizes.shape[0]))
    return Places(row.ravel(), tile * jnp.sum(used, axis=0, dtype=jnp.int32))


def _filled(x: jax.Array, places: Places) -> jax.Array:
    """[places, columns], with zeros where there is no row."""
    gathered = x.at[jnp.maximum(places.row, 0)].get(mode="promise_in_bounds")
    return jnp.where((places.row >= 0)[:, None], gathered, 0)
