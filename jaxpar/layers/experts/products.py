"""Products of what an exchange brings with the matrices of this rank's experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxpar.layers.experts.exchange import Exchange
from jaxpar.layers.experts.rows import Places, collect, spread
from jaxpar.mesh.parameters import Arrays
from jaxpar.mesh.quantized.tokens import sent
from jaxpar.runtime.observed import Maxima

INPUT = "expert_input"
"""The activation that rows are as they arrive. Copies in the order of experts are more rows, and recomputed from it."""


class Operands(NamedTuple):
    """The operands of the products of rows."""

    weights: Arrays
    """With what else the products need to know of the layer, as numbers."""
    observed: Mapping[str, Maxima]
    """By group of matmuls, zeros whose cotangents are statistics of its tensors over slices and rounds, where they are
    asked for."""


type Products = Callable[[Operands, jax.Array, jax.Array, jax.Array], jax.Array]
"""(operands, rows in the order of this rank's experts, weight of each row, rows of each expert) -> rows; where tensor
ranks split the experts, partial sums."""


def computed(products: Products, w: Operands, places: Places, rows: jax.Array) -> jax.Array:
    """For each received row the sum of the results of its experts on this rank."""
    rows = checkpoint_name(rows, INPUT)
    return _multiplied(products, w, places, spread(rows, places.take, places.back))


def local(exchange: Exchange, products: Products, w: Operands, places: Places, x: jax.Array) -> jax.Array:
    """For each token the sum of the results of its experts on this rank, without a message."""
    return _multiplied(products, w, places, sent(exchange.dtype, spread, x, places.take, places.back))


def _multiplied(products: Products, w: Operands, places: Places, rows: jax.Array) -> jax.Array:
    """The sums over experts, of rows in the order of experts."""
    found = products(w, rows, places.weights, places.sizes)
    return collect(found, places.take, places.back)


def sliced(slices: int, x: jax.Array) -> jax.Array:
    """[slices, tokens, ...] of the rows of all tokens."""
    return x.reshape(slices, -1, *x.shape[1:])
