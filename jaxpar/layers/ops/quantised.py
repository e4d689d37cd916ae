"""Quantised ops of a layer (`jaxpar.layers.ops.plain`): the groups of a recipe are quantised, all others are plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jaxpar.layers.context import TokenContext
from jaxpar.layers.ops.plain import Grouped, Matmul, Matrix, Ops, full_of, with_factors
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collective_matmul import PLAIN, gather_matmul, product
from jaxpar.mesh.collectives import scatter_sequence
from jaxpar.mesh.parameters import Arrays
from jaxpar.precision.amax import Amax, zero_amax
from jaxpar.precision.grouped import grouped_products
from jaxpar.precision.grouped_by_tensor import scales_of_experts
from jaxpar.precision.matmul import SCALES, WEIGHT_SCALES, GroupScaling, products
from jaxpar.precision.recipe import QuantisedGroups
from jaxpar.precision.ring import ring_in, ring_out
from jaxpar.runtime.observed import ZerosObserved

EXACT = "exact"
"""Among the constants of experts' products: 1 in a layer whose products are not quantised."""


@dataclass(frozen=True)
class QuantisedMatmul(Matmul):
    """Full matrices multiply in 8 bits, factors in their dtype."""

    scaling: GroupScaling = field(kw_only=True)

    def gather(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """Full matrices take codes, which are exchanged apart from the input of factors."""
        firsts = [matrix.factors[0] for matrix in matrices if matrix.factors is not None]
        made = iter(gather_matmul(x, firsts, self.overlap) if firsts else ())
        full, scaling = [matrix for matrix in matrices if matrix.full is not None], self.scaling
        if isinstance(scaling.of_codes, tuple):
            pairs = zip(full, scaling.of_codes, strict=True)
            scaling = scaling._replace(of_codes=tuple(_of_heads(matrix, scales) for matrix, scales in pairs))
        weights = [w for matrix in full if (w := matrix.full) is not None]
        if self._rings:
            return with_factors(made, matrices, iter(ring_in(x, weights, scaling, self.overlap.chunks)))
        return with_factors(made, matrices, iter(products(x, weights, scaling, gathers=True)))

    def local(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """Implements that of `Matmul`."""
        return products(x, list(map(full_of, matrices)), self.scaling, gathers=False)

    def scatter(self, x: jax.Array, matrix: Matrix) -> jax.Array:
        """Implements that of `Matmul`."""
        full = matrix.full
        assert full is not None, "products of two are not quantised"
        if matrix.factors is not None:  # the sum of both is one message
            (y,) = products(x, [full], self.scaling, gathers=False)
            return scatter_sequence(y + product(matrix.inside(product(x, matrix.factors[0])), matrix.factors[1]))
        if self._rings:
            return ring_out(x, full, self.scaling, self.overlap.chunks)
        return products(x, [full], self.scaling, gathers=False, scatters=True)[0]

    @property
    def _rings(self) -> bool:
        """Whether the sequence is exchanged in a ring. Where some pipeline ranks multiply exactly it is not: ranks in
        different branches would meet in each other's permutes."""
        return self.overlap.algorithm.name == "ring" and self.scaling.exact is None


@dataclass(frozen=True)
class QuantisedGrouped(Grouped):
    """The products of routed experts, quantised where a group has a scaling."""

    scalings: Mapping[str, GroupScaling] = field(kw_only=True)

    def products(
        self, group: str, x: jax.Array, weights: Sequence[jax.Array], given: Any, **options: Any
    ) -> Sequence[jax.Array]:
        """Implements that of `Grouped`."""
        scaling, (constants, observed) = self.scalings.get(group), given
        if scaling is None:
            return super().products(group, x, weights, given, **options)
        exact = constants[EXACT] > 0 if EXACT in constants else None
        scaling = scaling._replace(exact=exact, scales=constants.get(f"{group}.{SCALES}"), zeros=observed.get(group))
        return grouped_products(x, weights, options.pop("group_sizes"), scaling, **options)


@dataclass(frozen=True)
class QuantisedOps(Ops):
    """The ops of the layers of a kind, and those of one of them."""

    groups: QuantisedGroups = field(kw_only=True)
    layer: tuple[Int[Array, ""], TokenContext, Amax | None] | None = None
    """The layer's number, its tokens, and zeros for what is observed."""

    @property
    def zeros_observed(self) -> ZerosObserved | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Implements that of `Ops`."""
        tensors = self.groups.tensors
        return (lambda *layers: zero_amax(*layers, tensors)) if self.groups.recipe.from_history else None

    def of_layer(self, index: Int[Array, ""], tokens: TokenContext, observed: Any) -> Ops:
        """Implements that of `Ops`."""
        return replace(self, layer=(index, tokens, observed))

    def matmul(self, group: str) -> Matmul:
        """Implements that of `Ops`."""
        scaling, overlap = self._scaling(group), self.overlap.get(group, PLAIN)
        return Matmul(overlap) if scaling is None else QuantisedMatmul(overlap, scaling=scaling)

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        """Implements that of `Ops`."""
        scalings = {group: one for group in matrices if (one := self._scaling(group)) is not None}
        constants: Arrays = {}
        for group, scaling in scalings.items():
            scales = scales_of_experts(matrices[group], scaling)
            if scales is not None:
                constants[f"{group}.{SCALES}"] = vary(scales)
            if scaling.exact is not None:  # a number, because the loops make gradients of all that they are given
                constants[EXACT] = vary(scaling.exact.astype(jnp.float32))
        observed = {group: scaling.zeros for group, scaling in scalings.items() if scaling.zeros is not None}
        return QuantisedGrouped(constants, observed, scalings=scalings)

    def _scaling(self, group: str) -> GroupScaling | None:
        assert self.layer is not None, "scales are those of a layer"
        index, tokens, observed = self.layer
        return _scaling_of(self.groups, group, index, tokens.carried, observed)


def _scaling_of(
    groups: QuantisedGroups, group: str, layer: Int[Array, ""], carried: Mapping[str, Any], zeros: Amax | None
) -> GroupScaling | None:
    """The scaling of a group of a layer; None if the group is not quantised.

    Args:
        groups: those that are.
        group: its name.
        layer: number of the layer in the model.
        carried: what layers read of carried state, with `SCALES` and `WEIGHT_SCALES` where there are any.
        zeros: of all tensors of the layer; None where nothing observes them.
    """
    if group not in groups.groups:
        return None
    exact = None
    if groups.exact_layers is not None:
        first, last = groups.exact_layers
        exact = (layer < first) | (layer >= last)
    matrices = len(groups.groups[group])
    columns = slice(groups.first[group], groups.first[group] + 1 + 2 * matrices)
    row = lambda table: lax.dynamic_index_in_dim(table, layer, keepdims=False)[columns]
    scales, of_codes = carried.get(SCALES), carried.get(WEIGHT_SCALES)
    if isinstance(of_codes, Mapping):
        of_codes = of_codes[groups.kind].of_layer(group, layer) if groups.kind in of_codes else None
    elif of_codes is not None:
        of_codes = row(of_codes)[1 : 1 + matrices]
    zeros = None if zeros is None else Amax(zeros.values[columns])
    return GroupScaling(groups.recipe, exact, None if scales is None else row(scales), zeros, of_codes)


def _of_heads(matrix: Matrix, scales: jax.Array) -> jax.Array:
    """Scales of squares of the heads that this rank takes."""
    if matrix.heads is None:
        return scales
    count, take = matrix.heads
    return take(scales.reshape(len(scales), count, -1), 1).reshape(len(scales), -1)
