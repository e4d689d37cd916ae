"""Quantized ops of a layer (`jaxpar.layers.ops.plain`): the groups of a recipe are quantized, all others are plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jaxpar.layers.context import TokenContext
from jaxpar.layers.ops.plain import Grouped, Matmul, Matrix, Ops, full_of, with_factors
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collective_matmul import PLAIN_OVERLAP, gather_matmul, product
from jaxpar.mesh.collectives import scatter_sequence
from jaxpar.precision.dense import products
from jaxpar.precision.grouped import grouped_products, scales_of_experts
from jaxpar.precision.matmul import SCALES, WEIGHT_SCALES, GroupScaling, Scales
from jaxpar.precision.recipe import QuantizedGroups
from jaxpar.runtime.observed import Maxima
from jaxpar.runtime.taps import Tap


@dataclass(frozen=True)
class QuantizedMatmul(Matmul):
    """Full matrices multiply in 8 bits, factors in their dtype."""

    scaling: GroupScaling = field(kw_only=True)

    def gather(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """Full matrices multiply quantized values, which are exchanged apart from the input of factors."""
        firsts = [matrix.factors[0] for matrix in matrices if matrix.factors is not None]
        made = iter(gather_matmul(x, firsts, self.overlap) if firsts else ())
        full, scaling = [matrix for matrix in matrices if matrix.full is not None], self.scaling
        if isinstance(squares := scaling.scales.weights, tuple):
            pairs = zip(full, squares, strict=True)
            squares = tuple(_head_scales(matrix, scales) for matrix, scales in pairs)
            scaling = replace(scaling, scales=Scales(weights=squares))
        weights = [w for matrix in full if (w := matrix.full) is not None]
        return with_factors(made, matrices, iter(products(x, weights, scaling, gathers=True, chunks=self._chunks)))

    def local(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """Implements that of `Matmul`."""
        return products(x, list(map(full_of, matrices)), self.scaling, gathers=False)

    def scatter(self, x: jax.Array, matrix: Matrix) -> jax.Array:
        """Implements that of `Matmul`."""
        full = matrix.full
        assert full is not None, "products of two are not quantized"
        if matrix.factors is not None:  # the sum of both is one message
            (y,) = products(x, [full], self.scaling, gathers=False)
            return scatter_sequence(y + product(matrix.inside(product(x, matrix.factors[0])), matrix.factors[1]))
        return products(x, [full], self.scaling, gathers=False, scatters=True, chunks=self._chunks)[0]

    @property
    def _chunks(self) -> int | None:
        """Chunks of a ring in which the sequence is exchanged; None without one. Where some pipeline ranks multiply
        exactly there is none: ranks in different branches would meet in each other's permutes."""
        return self.overlap.chunks if self.overlap.algorithm.name == "ring" and self.scaling.exact is None else None


@dataclass(frozen=True)
class QuantizedGrouped(Grouped):
    """The products of routed experts, quantized where `constants` have the scaling of a group."""

    def products(
        self, group: str, x: jax.Array, weights: Sequence[jax.Array], given: Any, **options: Any
    ) -> Sequence[jax.Array]:
        """Implements that of `Grouped`."""
        constants, observed = given
        if group not in constants:
            return super().products(group, x, weights, given, **options)
        scaling = constants[group]
        exact = None if scaling.exact is None else scaling.exact > 0
        scaling = replace(scaling, exact=exact, zeros=observed.get(group))
        return grouped_products(x, weights, options.pop("group_sizes"), scaling, **options)


@dataclass(frozen=True)
class QuantizedOps(Ops):
    """The ops of the layers of a kind, and those of one of them."""

    groups: QuantizedGroups = field(kw_only=True)
    layer: tuple[Int[Array, ""], TokenContext, Maxima | None] | None = None
    """The layer's number, its tokens, and zeros for what is observed."""

    @property
    def observes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Implements that of `Ops`."""
        return self.groups.tensors if self.groups.recipe.from_history else 0

    def for_layer(
        self, index: Int[Array, ""], tokens: TokenContext, observed: Any = None, tap: Tap | None = None
    ) -> Self:
        """Implements that of `Ops`."""
        return replace(self, layer=(index, tokens, observed), tap=tap)

    def matmul(self, group: str) -> Matmul:
        """Implements that of `Ops`."""
        scaling, overlap = self._scaling(group), self.overlap.get(group, PLAIN_OVERLAP)
        return Matmul(overlap) if scaling is None else QuantizedMatmul(overlap, scaling=scaling)

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        """Implements that of `Ops`."""
        scalings = {group: one for group in matrices if (one := self._scaling(group)) is not None}
        observed = {group: scaling.zeros for group, scaling in scalings.items() if scaling.zeros is not None}
        constants: dict[str, Any] = {}
        for group, scaling in scalings.items():
            scales = scales_of_experts(matrices[group], scaling)
            # A number, because the loops make gradients of all that they are given.
            exact = None if scaling.exact is None else scaling.exact.astype(jnp.float32)
            constants[group] = vary(replace(scaling, exact=exact, scales=scales, zeros=None))
        return QuantizedGrouped(constants, observed)

    def _scaling(self, group: str) -> GroupScaling | None:
        """The scaling of a group in the layer; None if the group is not quantized."""
        assert self.layer is not None, "scales are those of a layer"
        groups, (layer, tokens, zeros) = self.groups, self.layer
        if group not in groups.columns:
            return None
        exact, scales = None, Scales()
        if groups.exact_layers is not None:
            first, last = groups.exact_layers
            exact = (layer < first) | (layer >= last)
        columns = slice(groups.columns[group].start, groups.columns[group].stop)
        # A program of layers some of which are exact has matrices that are quantized with each use.
        stacks = tokens.carried.get(WEIGHT_SCALES, {}).get(groups.kind) if exact is None else None
        squares = None if stacks is None else stacks.layer_scales(group, layer)
        if SCALES in tokens.carried:
            row = lax.dynamic_index_in_dim(tokens.carried[SCALES], layer, keepdims=False)[columns]
            matrices = len(row) // 2
            scales = Scales(row[0], row[1 : 1 + matrices], row[1 + matrices :])
        elif squares is not None:
            one = groups.recipe.tiles is None
            scales = Scales(weights=jnp.concatenate([scale.ravel() for scale in squares]) if one else squares)
        zeros = None if zeros is None else zeros[columns]
        return GroupScaling(groups.recipe, exact, scales, zeros, weights_quantized=squares is not None)


def _head_scales(matrix: Matrix, scales: jax.Array) -> jax.Array:
    """Scales of squares of the heads that this rank takes."""
    if matrix.heads is None:
        return scales
    count, take = matrix.heads
    return take(scales.reshape(len(scales), count, -1), 1).reshape(len(scales), -1)
