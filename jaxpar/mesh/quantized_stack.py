"""Stacks of matrices with rows in 8 bits: those of the layers whose matmuls are quantized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from jaxpar.mesh.layer_order import Index


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedStack:
    """A stack of a matrix, [row, ...], in which each row is in one of two arrays."""

    quantized: Shaped[Array, "rows ..."] | None
    """Rows as quantized values of 8 bits, whose scales are apart; None if there are none."""
    others: Shaped[Array, "rows ..."] | None
    """The other rows, in the order of the stack."""
    is_quantized: tuple[bool, ...] = field(metadata={"static": True})
    """Whether each row of the stack is in `quantized`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the full stack."""
        some = self.others if self.quantized is None else self.quantized
        assert some is not None, "a stack has rows"
        return (len(self.is_quantized), *some.shape[1:])

    def row(self, index: Index, is_quantized: bool) -> jax.Array:
        """A row of the stack, from the quantized ones or the others."""
        rows = self.quantized if is_quantized else self.others
        assert rows is not None, "no row of the stack is stored so"
        indices = np.cumsum([each == is_quantized for each in self.is_quantized]) - 1
        row = int(indices[index]) if isinstance(index, int) else jnp.asarray(indices, jnp.int32)[index]
        return lax.dynamic_index_in_dim(rows, row, keepdims=False)


def quantized_stack(
    is_quantized: tuple[bool, ...], quantized: Callable[[range], jax.Array], others: Callable[[range], jax.Array]
) -> QuantizedStack:
    """A stack of neighbouring rows: `quantized` makes the quantized ones, `others` the other ones."""
    return QuantizedStack(_rows(quantized, is_quantized, True), _rows(others, is_quantized, False), is_quantized)


def is_quantized_stack(leaf: object) -> bool:
    """Whether a leaf of a tree of weights is a `QuantizedStack`."""
    return isinstance(leaf, QuantizedStack)


def _rows(made: Callable[[range], jax.Array], is_quantized: tuple[bool, ...], wanted: bool) -> jax.Array | None:
    """The rows that are quantized, or those that are not, computed as runs of neighbours."""
    edges = [
        0,
        *(row for row in range(1, len(is_quantized)) if is_quantized[row] != is_quantized[row - 1]),
        len(is_quantized),
    ]
    runs = [made(range(a, b)) for a, b in pairwise(edges) if is_quantized[a] == wanted]
    return jnp.concatenate(runs) if runs else None
