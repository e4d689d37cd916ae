"""Stacks of matrices of which a step stores codes of 8 bits: the rows of layers whose matmuls are quantized."""

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
class CodedStack:
    """A stack of a matrix, [row, ...], in which each row is in one of two arrays."""

    quantized: Shaped[Array, "rows ..."] | None
    """Rows as quantized values of 8 bits, whose scales are apart; None if there are none."""
    others: Shaped[Array, "rows ..."] | None
    """The other rows, in the order of the stack."""
    coded: tuple[bool, ...] = field(metadata={"static": True})
    """For each row of the stack, whether it is among `quantized`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the full stack."""
        some = self.others if self.quantized is None else self.quantized
        assert some is not None, "a stack has rows"
        return (len(self.coded), *some.shape[1:])

    def row(self, index: Index, coded: bool) -> jax.Array:
        """A row of the stack, which is `coded` or not."""
        rows = self.quantized if coded else self.others
        assert rows is not None, "no row of the stack is stored so"
        indices = np.cumsum([each == coded for each in self.coded]) - 1
        row = int(indices[index]) if isinstance(index, int) else jnp.asarray(indices, jnp.int32)[index]
        return lax.dynamic_index_in_dim(rows, row, keepdims=False)


def coded_stack(
    coded: tuple[bool, ...], quantized: Callable[[range], jax.Array], others: Callable[[range], jax.Array]
) -> CodedStack:
    """A stack of neighbouring rows: `quantized` makes those that are `coded`, `others` the other ones."""
    return CodedStack(_rows(quantized, coded, True), _rows(others, coded, False), coded)


def is_coded_stack(leaf: object) -> bool:
    """Whether a leaf of a tree of weights is a `CodedStack`."""
    return isinstance(leaf, CodedStack)


def _rows(made: Callable[[range], jax.Array], coded: tuple[bool, ...], wanted: bool) -> jax.Array | None:
    """The rows that are coded, or those that are not, made as runs of neighbours."""
    edges = [0, *(row for row in range(1, len(coded)) if coded[row] != coded[row - 1]), len(coded)]
    runs = [made(range(a, b)) for a, b in pairwise(edges) if coded[a] == wanted]
    return jnp.concatenate(runs) if runs else None
