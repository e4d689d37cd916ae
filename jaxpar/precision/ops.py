"""A layer's matmuls in FP8 (`jaxpar.layers.ops`): the groups of a recipe are quantised, all others are plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxpar.config.plan import TensorOverlap
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declared import declare_feed_forward, feed_forward_class
from jaxpar.layers.ops import Grouped, Matmul, Matrix, Ops, PlainGrouped, PlainMatmul, Projects, with_factors
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collective_matmul import PLAIN, gather_matmul, product
from jaxpar.mesh.collectives import scatter_sequence
from jaxpar.mesh.parameters import Arrays
from jaxpar.precision.grouped import grouped_products
from jaxpar.precision.grouped_by_tensor import GroupedScaling, scales_of_experts
from jaxpar.precision.matmul import SCALES, GroupScaling, products, scaling_of
from jaxpar.precision.recipe import QuantisedGroups
from jaxpar.precision.ring import ring_in, ring_out
from jaxpar.precision.seen import Seen, seeing_gradients

EXACT = "exact"
"""Beside the weights that the exchange's loops are given: 1 in a layer whose products are not quantised."""


@dataclass(frozen=True)
class QuantisedMatmul:
    """Full matrices multiply in FP8, products of factors in their own dtype."""

    scaling: GroupScaling
    overlap: TensorOverlap

    def gather(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """As in `jaxpar.layers.ops.Matmul`."""
        firsts = [matrix.factors[0] for matrix in matrices if matrix.factors is not None]
        made = iter(gather_matmul(x, firsts, self.overlap) if firsts else ())
        full, scaling = [matrix.full for matrix in matrices if matrix.full is not None], self._of(matrices)
        if self._rings:
            return with_factors(made, matrices, iter(ring_in(x, full, scaling, self.overlap.chunks)))
        return with_factors(made, matrices, iter(products(x, full, scaling, gathers=True)))

    def local(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """As in `jaxpar.layers.ops.Matmul`."""
        return products(x, [_full(matrix) for matrix in matrices], self.scaling, gathers=False)

    def scatter(self, x: jax.Array, matrix: Matrix) -> jax.Array:
        """As in `jaxpar.layers.ops.Matmul`."""
        full = _full(matrix)
        if matrix.factors is not None:  # the sum of both is one message
            (y,) = products(x, [full], self.scaling, gathers=False)
            return scatter_sequence(y + product(matrix.inside(product(x, matrix.factors[0])), matrix.factors[1]))
        if self._rings:
            return ring_out(x, full, self.scaling, self.overlap.chunks)
        return products(x, [full], self.scaling, gathers=False, scatters=True)[0]

    def elementwise(self, function: Callable[..., jax.Array], *outputs: jax.Array) -> jax.Array:
        """As in `jaxpar.layers.ops.Matmul`; where the function's derivative makes the gradients of the outputs, it
        observes them."""
        if self.scaling.elementwise is None or self.scaling.observed is None:
            return function(*outputs)
        return seeing_gradients(function, self.scaling.observed[-len(outputs) :], *outputs)

    @property
    def _rings(self) -> bool:
        """Whether the sequence is exchanged in a ring. Where some pipeline ranks multiply exactly it is not: ranks in
        different branches would meet in each other's permutes."""
        return self.overlap.algorithm == "ring" and self.scaling.exact is None

    def _of(self, matrices: Sequence[Matrix]) -> GroupScaling:
        """The scaling with scales of squares, if there are any, of the heads that this rank takes."""
        if not isinstance(self.scaling.of_codes, tuple):
            return self.scaling
        full = [matrix for matrix in matrices if matrix.full is not None]
        pairs = zip(full, self.scaling.of_codes, strict=True)
        return self.scaling._replace(of_codes=tuple(_of_heads(matrix, scales) for matrix, scales in pairs))


@dataclass(frozen=True)
class QuantisedGrouped:
    """The quantised products of routed experts."""

    scalings: Mapping[str, GroupScaling]
    constants: Arrays

    @property
    def observed(self) -> Mapping[str, Any]:
        """As in `jaxpar.layers.ops.Grouped`."""
        return {group: scaling.unseen for group, scaling in self.scalings.items()}

    def products(
        self,
        group: str,
        x: jax.Array,
        matrices: Sequence[jax.Array],
        sizes: jax.Array,
        constants: Arrays,
        observed: Mapping[str, Any],
        *,
        inward: bool,
        **options: Any,
    ) -> Sequence[jax.Array]:
        """As in `jaxpar.layers.ops.Grouped`."""  # fmt: skip
        scaling = self.scalings.get(group)
        if scaling is None:
            return PlainGrouped().products(group, x, matrices, sizes, constants, observed, inward=inward, **options)
        exact = constants[EXACT] > 0 if EXACT in constants else None
        scales = constants.get(f"{group}.{SCALES}")
        grouped = GroupedScaling(scaling.recipe, scaling.of_codes is not None, exact, scales, observed[group])
        return grouped_products(x, matrices, sizes, grouped, inward=inward, **options)


@dataclass(frozen=True)
class QuantisedOps:
    """Ops of the layers of a kind, some groups of which are quantised."""

    groups: QuantisedGroups
    overlap: Mapping[str, TensorOverlap] = field(default_factory=dict)
    """By group, how tensor ranks exchange the sequence; others take `PLAIN`."""
    elementwise: Mapping[str, Literal["input", "gradients"]] = field(default_factory=dict)
    """The groups around a block's elementwise work, with the operand that this work or its derivative makes; those in a
    ring, or not quantised with all their matrices, are left out with the others of the block."""

    def of_layer(self, index: Int[Array, ""], tokens: TokenContext, observed: Any, *, split: bool = False) -> Ops:
        """As in `jaxpar.layers.ops.LayerOps`."""
        return _LayerOps(self, index, tokens, observed, split)


@dataclass(frozen=True)
class _LayerOps:
    """The ops of one layer."""

    kind: QuantisedOps
    index: Int[Array, ""]
    tokens: TokenContext
    observed: Seen | None
    split: bool

    def matmul(self, group: str) -> Matmul:
        scaling, overlap = self._scaling(group), self.kind.overlap.get(group, PLAIN)
        return PlainMatmul(overlap) if scaling is None else QuantisedMatmul(scaling, overlap)

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        scalings = {group: own for group in matrices if (own := self._scaling(group)) is not None}
        constants: Arrays = {}
        for group, scaling in scalings.items():
            scales = scales_of_experts(matrices[group], scaling)
            if scales is not None:
                constants[f"{group}.{SCALES}"] = vary(scales)
            if scaling.exact is not None:  # a number, because the loops make gradients of all that they are given
                constants[EXACT] = vary(scaling.exact.astype(jnp.float32))
        return QuantisedGrouped(scalings, constants)

    def run(self, block: Projects, group: str, x: jax.Array) -> Any:
        return block.project(group, x, self.matmul(group))

    def _scaling(self, group: str) -> GroupScaling | None:
        tokens = self.tokens
        scaling = scaling_of(self.kind.groups, group, self.index, tokens.scales, tokens.weight_scales, self.observed)
        if scaling is None or self.split:
            return scaling
        # Scales that are computed from gradients need these in memory; branches and counts read them there.
        if scaling.scales is None or scaling.exact is not None or scaling.counted is not None:
            return scaling
        return scaling._replace(elementwise=self.kind.elementwise.get(group))


def quantised_ops(groups: QuantisedGroups, overlap: Mapping[str, TensorOverlap], model: ModelConfig) -> QuantisedOps:
    """The ops of the layers of `model`, a model of one kind.

    Args:
        groups: those that are quantised.
        overlap: by group, how tensor ranks exchange the sequence.
        model: its feed-forward may have elementwise work between two groups.
    """
    elementwise = {} if model.experts is not None else feed_forward_class(model).elementwise
    inward = declare_feed_forward(model).groups[0]
    plain = all(overlap.get(name, PLAIN).algorithm == "plain" for name in elementwise)
    fused = plain and groups.groups.get(inward.name) == inward.weights
    return QuantisedOps(groups, overlap, elementwise if fused else {})


def _of_heads(matrix: Matrix, scales: jax.Array) -> jax.Array:
    if matrix.heads is None:
        return scales
    count, take = matrix.heads
    return take(scales.reshape(len(scales), count, -1), 1).reshape(len(scales), -1)


def _full(matrix: Matrix) -> jax.Array:
    assert matrix.full is not None, "products of two are not quantised"
    return matrix.full
