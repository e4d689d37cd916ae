"""Plain matmuls of a layer: blocks call the groups of matmuls that they declare by name, whatever multiplies them.

`Ops` runs a group of a block; `Matmul` has the products of one group, with the exchange of the sequence between tensor
ranks around them. Both are the plain ones here, of arrays in their dtype; `jaxpar.layers.ops.quantized` has those that
quantize. A tap splits a backward (`jaxpar.runtime.taps`). A layer's ops are made where the plan is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.config.plan import TensorOverlap
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.part import Part
from jaxpar.mesh.collective_matmul import PLAIN_OVERLAP, gather_matmul, matmul_scatter, product
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.observed import Maxima
from jaxpar.runtime.taps import Tap
from pallas_kernels.grouped_matmul import grouped_matmul


class Matrix(NamedTuple):
    """A matrix [*inputs, *outputs] of this rank: an array, the product of two factors, or the sum of both."""

    full: jax.Array | None
    factors: tuple[jax.Array, jax.Array] | None = None
    scale: float = 1.0
    """A factor of the product of the two factors."""
    heads: tuple[int, Callable[[jax.Array, int], jax.Array]] | None = None
    """Selection of one of several heads that all ranks have: their number, and the function that takes it along a
    dim."""

    def inside(self, x: jax.Array) -> jax.Array:
        """Between the two factors, from the product of the first: `rank` numbers for each token."""
        return x * self.scale if self.scale != 1.0 else x


@dataclass(frozen=True)
class Matmul:
    """The products of one group of a layer's matmuls, in the dtype of the arrays."""

    overlap: TensorOverlap = PLAIN_OVERLAP
    """Exchange of the sequence between tensor ranks."""

    def gather(
        self, x: Float[Array, "batch part inputs"], matrices: Sequence[Matrix]
    ) -> tuple[Float[Array, "batch seq ..."], ...]:
        """The sequence that `x` is joined to, in one exchange, times each matrix: columns of this rank."""
        terms = [w for one in matrices for w in (one.full, one.factors and one.factors[0]) if w is not None]
        return with_factors(iter(gather_matmul(x, terms, self.overlap)), matrices)

    def local(
        self, x: Float[Array, "batch part inputs"], matrices: Sequence[Matrix]
    ) -> tuple[Float[Array, "batch part ..."], ...]:
        """This rank's part of the sequence times each matrix, of which every rank has all columns."""
        return tuple(product(x, full_of(matrix)) for matrix in matrices)

    def scatter(self, x: Float[Array, "batch seq ..."], matrix: Matrix) -> Float[Array, "batch part embed"]:
        """This rank's part of the sequence of `x` times the matrix, of which it has some rows: summed over ranks."""
        pairs = [] if matrix.full is None else [(x, matrix.full)]
        if matrix.factors is not None:
            pairs.append((matrix.inside(product(x, matrix.factors[0])), matrix.factors[1]))
        return matmul_scatter([x for x, _ in pairs], [w for _, w in pairs], self.overlap)


@dataclass(frozen=True)
class Grouped:
    """The products of rows, sorted by group, with the matrices of their groups."""

    constants: Arrays = field(default_factory=dict)
    """Numbers that all products of a layer take, besides the matrices."""
    observed: Mapping[str, Maxima] = field(default_factory=dict)
    """Zeros whose cotangents are statistics of a group's tensors, by group."""
    kinds: int = 1
    """Kinds of rows, which have different terms beside the matrices. The rows of each kind of a group are together."""
    kind: Int[Array, "batch part"] | None = None
    """The kind of each token; None where there is one."""

    def products(
        self,
        group: str,
        x: Float[Array, "rows inputs"],
        weights: Sequence[Float[Array, "groups inputs outputs"]],
        given: Any,
        **options: Any,
    ) -> Sequence[Float[Array, "rows outputs"]]:
        """`x` times each stack of matrices.

        Args:
            group: of matmuls.
            x: rows in the order of the groups.
            weights: the matrices of the group.
            given: `constants` and `observed`, as the exchange passes them for this use.
            options: of `pallas_kernels.grouped_matmul.grouped_matmul`, and `inward`: whether tensor ranks split the
                outputs of the matrices, not their inputs.
        """
        del group, given, options["inward"]
        return [grouped_matmul(x, w, **options) for w in weights]

    def rows_of_groups(self, sizes: Int[Array, " kinds_of_groups"]) -> Int[Array, " groups"]:
        """The rows of each group, from those of each of its kinds."""
        return sizes if self.kinds == 1 else sizes.reshape(-1, self.kinds).sum(axis=1)

    def term(
        self,
        x: Float[Array, "rows inputs"],
        factors: tuple[jax.Array, jax.Array],
        scale: float,
        sizes: Int[Array, " kinds_of_groups"],
        expected: int,
    ) -> Float[Array, "rows outputs"]:
        """`x` times the product of two factors of each group, and `scale`."""
        # Kernels are for wider matrices than factors.
        narrow = partial(grouped_matmul, group_sizes=sizes, implementation="xla", expected=expected)
        return narrow(narrow(x, factors[0]) * scale, factors[1])


class Projects(Protocol):
    """A block that has groups of matmuls."""

    def project(self, group: str, x: jax.Array, matmul: Matmul) -> PyTree:
        """The outputs of a group: linear in its matrices, and in `x`."""
        ...


@dataclass(frozen=True)
class Ops:
    """The matmuls of layers, in the dtype of the arrays."""

    overlap: Mapping[str, TensorOverlap] = field(default_factory=dict)
    """Exchange of the sequence between tensor ranks, by group; others take `PLAIN_OVERLAP`."""
    tap: Tap | None = field(default=None, kw_only=True)
    """Called in place of each group, in a layer whose backward is split."""

    observes: ClassVar[int] = 0
    """Numbers that the ops observe in the backward of training."""

    def for_layer(
        self, index: Int[Array, ""], tokens: TokenContext, observed: Any = None, tap: Tap | None = None
    ) -> Self:
        """The ops of one layer.

        Args:
            index: the layer's index in the model.
            tokens: with what carried state and the weights' store give to layers.
            observed: zeros, whose cotangents are what the ops observe; None where nothing is.
            tap: splits the backward; None does not.
        """
        del index, tokens, observed
        return replace(self, tap=tap)

    def matmul(self, group: str) -> Matmul:
        """The products of a group."""
        return Matmul(self.overlap.get(group, PLAIN_OVERLAP))

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        """The products of routed matrices, given by group the matrices that a layer gathered."""
        del matrices
        return Grouped()

    def run(self, block: Projects, group: str, x: jax.Array) -> PyTree:
        """The outputs of a group of a block."""
        project = lambda name, x: block.project(name, x, self.matmul(name))
        return project(group, x) if self.tap is None else self.tap(group, project, x)


def matrix_of(part: Part, name: str, weight: Callable[[str], jax.Array]) -> Matrix:
    """The matrix `name` of a part, from its weights by name: see `layers.declaration.low_rank` and `Part.terms`."""
    if part.is_factored(name):
        first, second = part.factors_of(name)
        return Matrix(None, (weight(first), weight(second)))
    term = part.term(name)
    if term is None:
        return Matrix(weight(name))
    return Matrix(weight(name), (weight(term.first), weight(term.second)), term.scale)


def with_factors(products: PyTree, matrices: Sequence[Matrix], full: Any = None) -> tuple[jax.Array, ...]:
    """The outputs of matrices.

    Args:
        products: an iterator over the products of full matrices and first factors, in their order.
        matrices: see `Matrix`.
        full: an iterator over the products of full matrices, where `products` has none of them.
    """
    outputs: list[jax.Array] = []
    for matrix in matrices:
        terms: list[jax.Array] = [] if matrix.full is None else [next(products if full is None else full)]
        if matrix.factors is not None:
            terms.append(product(matrix.inside(next(products)), matrix.factors[1]))
        outputs.append(reduce(jnp.add, terms))
    return tuple(outputs)


def full_of(matrix: Matrix) -> jax.Array:
    """The array of a matrix without factors."""
    assert matrix.full is not None and matrix.factors is None, "a matrix without factors"
    return matrix.full
