"""How a layer multiplies: blocks call the groups of matmuls that they declare by name, whatever multiplies them.

`Ops` runs a group of a block; `Matmul` has the products of one group, with the exchange of the sequence between tensor
ranks around them. `PlainOps` multiplies arrays in their dtype; `jaxpar.precision.ops` has those that quantise. `Tapped`
splits a backward: the input's gradient now, the weights' gradient later. A layer's ops are made where the plan is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.config.plan import TensorOverlap
from jaxpar.layers.context import TokenContext
from jaxpar.layers.declaration.part import Part
from jaxpar.layers.linear import Tap
from jaxpar.mesh.collective_matmul import PLAIN, gather_matmul, matmul_scatter, product
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.observed import Observed
from pallas_kernels.grouped_matmul import grouped_matmul


class Matrix(NamedTuple):
    """A matrix [*inputs, *outputs] of this rank: an array, the product of two factors, or the sum of both."""

    full: jax.Array | None
    factors: tuple[jax.Array, jax.Array] | None = None
    scale: float = 1.0
    """Of the factors' product."""
    heads: tuple[int, Callable[[jax.Array, int], jax.Array]] | None = None
    """Where this rank takes one of several heads that all ranks hold: their number, and what takes it along a dim."""

    def inside(self, x: jax.Array) -> jax.Array:
        """Between the two factors, from the product of the first: `rank` numbers for each token."""
        return x * self.scale if self.scale != 1.0 else x


class Matmul(Protocol):
    """The products of one group of a layer's matmuls."""

    def gather(
        self, x: Float[Array, "batch part inputs"], matrices: Sequence[Matrix]
    ) -> tuple[Float[Array, "batch seq ..."], ...]:
        """The sequence that `x` is joined to times each matrix: columns of this rank."""
        ...

    def local(
        self, x: Float[Array, "batch part inputs"], matrices: Sequence[Matrix]
    ) -> tuple[Float[Array, "batch part ..."], ...]:
        """This rank's part of the sequence times each matrix, of which every rank has all columns."""
        ...

    def scatter(self, x: Float[Array, "batch seq ..."], matrix: Matrix) -> Float[Array, "batch part embed"]:
        """This rank's part of the sequence of `x` times the matrix, of which it has some rows: summed over ranks."""
        ...

    def elementwise(self, function: Callable[..., jax.Array], *outputs: jax.Array) -> jax.Array:
        """An elementwise function of the group's outputs, which another group of the block multiplies."""
        ...


class Grouped(Protocol):
    """The products of rows, sorted by expert, with the matrices of their experts."""

    @property
    def constants(self) -> Arrays:
        """Numbers that all products of a layer take, besides the matrices."""
        ...

    @property
    def observed(self) -> Mapping[str, Observed]:
        """By group, zeros whose cotangents are statistics of its tensors."""
        ...

    def products(
        self,
        group: str,
        x: Float[Array, "rows inputs"],
        matrices: Sequence[Float[Array, "experts inputs outputs"]],
        sizes: Int[Array, " experts"],
        constants: Arrays,
        observed: Mapping[str, Observed],
        *,
        inward: bool,
        **options: Any,
    ) -> Sequence[Float[Array, "rows outputs"]]:
        """`x` times each stack of matrices.

        Args:
            group: of matmuls.
            x: rows in the order of the experts.
            matrices: those of the group.
            sizes: rows of each expert.
            constants: as above.
            observed: as above, for this use.
            inward: whether tensor ranks split the outputs of the matrices; else their inputs.
            options: of `pallas_kernels.grouped_matmul.grouped_matmul`.
        """  # fmt: skip
        ...


class Projects(Protocol):
    """A block that has groups of matmuls."""

    def project(self, group: str, x: jax.Array, matmul: Matmul) -> Any:
        """The outputs of a group: linear in its matrices, and in `x`."""
        ...


class Ops(Protocol):
    """The matmuls of one layer."""

    def matmul(self, group: str) -> Matmul:
        """The products of a group."""
        ...

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        """The products of routed experts, given by group the matrices that a layer gathered."""
        ...

    def run(self, block: Projects, group: str, x: jax.Array) -> Any:
        """The outputs of a group of a block."""
        ...


class LayerOps(Protocol):
    """Makes the ops of the layers of a kind."""

    def of_layer(
        self, index: Int[Array, ""], tokens: TokenContext, observed: Observed | None, *, split: bool = False
    ) -> Ops:
        """The ops of one layer.

        Args:
            index: the layer's number in the whole model.
            tokens: with what carried state and the weights' store give to layers.
            observed: zeros, whose cotangents are what the ops observe; None where nothing is.
            split: whether weights' gradients are computed by a later action.
        """
        ...


@dataclass(frozen=True)
class PlainMatmul:
    """Products in the dtype of the arrays."""

    overlap: TensorOverlap = PLAIN

    def gather(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """As in `Matmul`. Full matrices and first factors share one exchange."""
        terms = [w for own in matrices for w in (own.full, own.factors and own.factors[0]) if w is not None]
        return with_factors(iter(gather_matmul(x, terms, self.overlap)), matrices)

    def local(self, x: jax.Array, matrices: Sequence[Matrix]) -> tuple[jax.Array, ...]:
        """As in `Matmul`."""
        return tuple(product(x, _full(matrix)) for matrix in matrices)

    def scatter(self, x: jax.Array, matrix: Matrix) -> jax.Array:
        """As in `Matmul`. The full matrix and the factors share one message."""
        pairs = [] if matrix.full is None else [(x, matrix.full)]
        if matrix.factors is not None:
            pairs.append((matrix.inside(product(x, matrix.factors[0])), matrix.factors[1]))
        return matmul_scatter([x for x, _ in pairs], [w for _, w in pairs], self.overlap)

    def elementwise(self, function: Callable[..., jax.Array], *outputs: jax.Array) -> jax.Array:
        """As in `Matmul`."""
        return function(*outputs)


class PlainGrouped:
    """Products of experts in the dtype of the arrays."""

    @property
    def constants(self) -> Arrays:
        """None."""
        return {}

    @property
    def observed(self) -> Mapping[str, Observed]:
        """None."""
        return {}

    def products(
        self,
        group: str,
        x: jax.Array,
        matrices: Sequence[jax.Array],
        sizes: jax.Array,
        constants: Arrays,
        observed: Mapping[str, Observed],
        *,
        inward: bool,
        **options: Any,
    ) -> list[jax.Array]:
        """As in `Grouped`."""  # fmt: skip
        del group, constants, observed, inward
        return [grouped_matmul(x, w, sizes, **options) for w in matrices]


@dataclass(frozen=True)
class PlainOps:
    """Ops of all layers alike."""

    overlap: Mapping[str, TensorOverlap] = field(default_factory=dict)
    """By group, how tensor ranks exchange the sequence; others take `PLAIN`."""

    def of_layer(
        self, index: jax.Array, tokens: TokenContext, observed: Observed | None, *, split: bool = False
    ) -> Ops:
        """As in `LayerOps`."""
        del index, tokens, observed, split
        return self

    def matmul(self, group: str) -> Matmul:
        """As in `Ops`."""
        return PlainMatmul(self.overlap.get(group, PLAIN))

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        """As in `Ops`."""
        del matrices
        return PlainGrouped()

    def run(self, block: Projects, group: str, x: jax.Array) -> Any:
        """As in `Ops`."""
        return block.project(group, x, self.matmul(group))


@dataclass(frozen=True)
class Tapped:
    """Ops whose groups are called through a tap (`jaxpar.layers.linear`)."""

    ops: Ops
    tap: Tap

    def matmul(self, group: str) -> Matmul:
        """As in `Ops`."""
        return self.ops.matmul(group)

    def grouped(self, matrices: Mapping[str, Sequence[jax.Array]]) -> Grouped:
        """As in `Ops`."""
        return self.ops.grouped(matrices)

    def run(self, block: Projects, group: str, x: jax.Array) -> Any:
        """As in `Ops`."""
        return self.tap(group, lambda name, x: self.ops.run(block, name, x), x)


def matrix_of(part: Part, name: str, weight: Callable[[str], jax.Array]) -> Matrix:
    """The matrix `name` of a part, from its weights by name: see `jaxpar.layers.low_rank` and `Part.terms`."""
    if part.is_factored(name):
        first, second = part.factors_of(name)
        return Matrix(None, (weight(first), weight(second)))
    term = part.term(name)
    if term is None:
        return Matrix(weight(name))
    return Matrix(weight(name), (weight(term.first), weight(term.second)), term.scale)


def with_factors(products: Any, matrices: Sequence[Matrix], full: Any = None) -> tuple[jax.Array, ...]:
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


def _full(matrix: Matrix) -> jax.Array:
    assert matrix.full is not None, "products of two factors are not multiplied locally"
    return matrix.full
