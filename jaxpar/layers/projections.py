"""Products of tokens and a layer's matrices, with the exchange of the sequence between tensor ranks around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from jaxpar.config.plan import TensorOverlap
from jaxpar.config.schema import LoraConfig
from jaxpar.layers.declaration.part import Part, factor_names
from jaxpar.layers.lora import FACTORS
from jaxpar.mesh.collective_matmul import gather_matmul, matmul_scatter, product
from jaxpar.mesh.collectives import scatter_sequence
from jaxpar.precision.matmul import GroupScaling, products
from jaxpar.precision.ring import ring_in, ring_out


class Matrix(NamedTuple):
    """A matrix [*inputs, *outputs] of this rank: whole, as the product of two factors, or the sum of both."""

    whole: jax.Array | None
    factors: tuple[jax.Array, jax.Array] | None = None
    scale: float = 1.0
    """Of the factors' product."""

    def inside(self, x: jax.Array) -> jax.Array:
        """Between the two factors, from the product of the first: `rank` numbers for each token."""
        return x * self.scale if self.scale != 1.0 else x


def matrix_of(part: Part, name: str, weight: Callable[[str], jax.Array], lora: LoraConfig) -> Matrix:
    """The matrix `name` of a part, from its weights by name: see `jaxpar.layers.low_rank` and `jaxpar.layers.lora`."""
    if part.is_factored(name):
        a, b = factor_names(name)
        return Matrix(None, (weight(a), weight(b)))
    a, b = (f"{name}_{factor}" for factor in FACTORS)
    if a not in part.weights:
        return Matrix(weight(name))
    assert lora.rank is not None, "there are factors"
    return Matrix(weight(name), (weight(a), weight(b)), lora.alpha / lora.rank)


def project_in(
    x: Float[Array, "batch part embed"],
    matrices: Sequence[Matrix],
    overlap: TensorOverlap,
    scaling: GroupScaling | None = None,
) -> tuple[Float[Array, "batch seq ..."], ...]:
    """The joined sequence times each matrix: columns of this rank. With `scaling` whole matrices multiply in FP8."""
    first = [
        w
        for own in matrices
        for w in (own.whole if scaling is None else None, own.factors and own.factors[0])
        if w is not None
    ]
    made = iter(gather_matmul(x, first, overlap) if first else ())
    whole = made
    if scaling is not None:
        quantised = [own.whole for own in matrices if own.whole is not None]
        if rings(overlap, scaling):
            whole = iter(ring_in(x, quantised, scaling, overlap.chunks))
        else:
            whole = iter(products(x, quantised, scaling, gathers=True))
    found: list[jax.Array] = []
    for own in matrices:
        terms = [] if own.whole is None else [next(whole)]
        if own.factors is not None:
            terms.append(product(own.inside(next(made)), own.factors[1]))
        found.append(sum(terms[1:], terms[0]))
    return tuple(found)


def rings(overlap: TensorOverlap, scaling: GroupScaling) -> bool:
    """Whether matmuls in FP8 exchange the sequence in a ring. Where some pipeline ranks multiply exactly they do not:
    ranks in different branches would meet in each other's permutes."""
    return overlap.algorithm.name == "ring" and scaling.exact is None


def project_out(
    x: Float[Array, "batch seq ..."], matrix: Matrix, overlap: TensorOverlap, scaling: GroupScaling | None = None
) -> Float[Array, "batch part embed"]:
    """This rank's part of the sequence of `x` times the matrix, of which this rank has some rows: summed over ranks.

    With `scaling` a whole matrix multiplies in FP8.
    """
    if scaling is not None:
        assert matrix.whole is not None, "products of two are not quantised"
        if matrix.factors is not None:  # the sum of both is one message
            (y,) = products(x, [matrix.whole], scaling, gathers=False)
            return scatter_sequence(y + product(matrix.inside(product(x, matrix.factors[0])), matrix.factors[1]))
        if rings(overlap, scaling):
            return ring_out(x, matrix.whole, scaling, overlap.chunks)
        return products(x, [matrix.whole], scaling, gathers=False, scatters=True)[0]
    pairs = [] if matrix.whole is None else [(x, matrix.whole)]
    if matrix.factors is not None:
        pairs.append((matrix.inside(product(x, matrix.factors[0])), matrix.factors[1]))
    return matmul_scatter([x for x, _ in pairs], [w for _, w in pairs], overlap)
