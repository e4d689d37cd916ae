"""Ops of generation with several adapters: each row is multiplied with the factors of its adapter (Punica,
arXiv:2310.18547).

The tokens of a batch are sorted by adapter once, and the products of each matrix's factors are grouped ones, as those
of experts are. Tokens without an adapter are behind the last group, whose products are 0.

Rows of routed experts are sorted by expert and then by adapter, as if each expert were one for each adapter and one
without: so an exchange of tokens carries their adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.layers.ops.plain import Grouped, Matmul, Matrix, Ops, full_of
from jaxpar.mesh.collective_matmul import PLAIN_OVERLAP, product
from jaxpar.mesh.collectives import gather_sequence, scatter_sequence
from jaxpar.runtime.taps import Tap
from pallas_kernels.grouped_matmul import grouped_matmul

BY_ADAPTER = "by_adapter"
"""The name of `ByAdapter` in `TokenContext.carried`."""


class ByAdapter(NamedTuple):
    """The tokens of a batch on a context rank, in the order of their adapters."""

    order: Int[Array, " tokens"]
    back: Int[Array, " tokens"]
    """The index of each token in `order`."""
    sizes: Int[Array, " adapters"]
    """Tokens of each adapter."""
    kind: Int[Array, "batch seq"]
    """The adapter of each token; the number of adapters stands for none."""


def sort_by_adapter(adapter: Int[Array, "batch seq"], adapters: int) -> ByAdapter:
    """Tokens sorted by their adapter, which is negative for those without one."""
    kind = jnp.where(adapter < 0, adapters, adapter)
    order = jnp.argsort(kind.ravel(), stable=True)
    sizes = jnp.sum(kind.reshape(-1, 1) == jnp.arange(adapters), axis=0)
    return ByAdapter(order, jnp.argsort(order), sizes, kind)


@dataclass(frozen=True)
class AdaptedMatmul(Matmul):
    """Factors are those of the adapter of each token."""

    tokens: ByAdapter = field(kw_only=True)

    def gather(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """Implements that of `Matmul`."""
        x = gather_sequence(x)
        return tuple(self._product(x, matrix) for matrix in matrices)

    def scatter(self, x: jax.Array, matrix: Matrix) -> jax.Array:
        """Implements that of `Matmul`."""
        return scatter_sequence(self._product(x, matrix))

    def _product(self, x: Float[Array, "batch seq *inputs"], matrix: Matrix) -> Float[Array, "batch seq *outputs"]:
        if matrix.factors is None:
            return product(x, full_of(matrix))
        assert matrix.full is not None, "factors are beside a matrix"
        y = product(x, matrix.full)
        a, b = matrix.factors
        rows = x.reshape(len(self.tokens.order), -1)[self.tokens.order]
        inside = grouped_matmul(rows, a.reshape(len(a), -1, a.shape[-1]), self.tokens.sizes)
        sums = grouped_matmul(inside, b.reshape(*b.shape[:2], -1), self.tokens.sizes)
        return y + sums[self.tokens.back].reshape(y.shape)


@dataclass(frozen=True)
class AdaptedGrouped(Grouped):
    """Rows of each expert have the factors of their adapters; those without one are the last."""

    def term(
        self,
        x: Float[Array, "rows inputs"],
        factors: tuple[jax.Array, jax.Array],
        scale: float,
        sizes: Int[Array, " kinds_of_groups"],
        expected: int,
    ) -> Float[Array, "rows outputs"]:
        """Implements that of `Grouped`, for factors [expert, adapter, inputs, outputs]."""
        # Rows without an adapter are multiplied with those of the last one, and then left out.
        behind, each = jnp.cumsum(sizes), sizes.reshape(-1, self.kinds)
        merged = each[:, :-1].at[:, -1].add(each[:, -1]).ravel()
        flat = [factor.reshape(-1, *factor.shape[2:]) for factor in factors]
        y = super().term(x, (flat[0], flat[1]), scale, merged, expected)
        kind = jnp.searchsorted(behind, jnp.arange(len(x)), side="right") % self.kinds
        return jnp.where((kind < self.kinds - 1)[:, None], y, 0)


@dataclass(frozen=True)
class AdaptedOps(Ops):
    """The ops of layers whose factors are a stack of adapters."""

    tokens: ByAdapter | None = None

    def for_layer(
        self, index: Int[Array, ""], tokens: TokenContext, observed: Any = None, tap: Tap | None = None
    ) -> Self:
        """Implements that of `Ops`."""
        del index, observed
        assert tap is None, "nothing is differentiated"
        return type(self)(self.overlap, tokens=tokens.carried[BY_ADAPTER])

    def matmul(self, group: str) -> Matmul:
        """Implements that of `Ops`."""
        assert self.tokens is not None, "a layer has tokens"
        return AdaptedMatmul(self.overlap.get(group, PLAIN_OVERLAP), tokens=self.tokens)

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        """Implements that of `Ops`."""
        del matrices
        assert self.tokens is not None, "a layer has tokens"
        return AdaptedGrouped(kinds=len(self.tokens.sizes) + 1, kind=sequence_part(self.tokens.kind))
