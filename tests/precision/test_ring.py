"""Rings of matmuls in FP8: the numbers of plain collectives, and codes of 8 bits on the way."""

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.mesh.axes import AXES, vary
from jaxpar.mesh.build import mapped
from jaxpar.precision.dense import products
from jaxpar.precision.matmul import GroupScaling
from jaxpar.precision.recipe import Recipe
from tests.traced import SENT, group_size, mesh_of, operations

BATCH, PART, EMBED, WIDTH = 2, 16, 8, 6
PARTS, COLUMNS, ROWS = P(None, "tensor"), P(None, "tensor"), P("tensor")


def arguments(ranks: int, dtype: Any = np.float32) -> list[Any]:
    """x, two matrices in, one out, and the cotangent of the output."""
    draw = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(draw.standard_normal(shape), dtype)
    tokens, hidden = (BATCH, PART * ranks, EMBED), WIDTH * ranks
    x, dy = normal(*tokens), normal(*tokens)
    # Outliers in one rank's part, of which all scales depend.
    return [x.at[0, -1, 0].set(50), normal(EMBED, hidden), normal(EMBED, ranks, WIDTH), normal(hidden, EMBED), dy]


def block(chunks: int | None, x: jax.Array, *given: jax.Array) -> jax.Array:
    """In, something that differs from token to token, out; plain without `chunks`."""
    *weights, observed = given
    scaling = lambda group: GroupScaling(Recipe(), zeros=observed[group])
    q, up = products(x, weights[:2], scaling(slice(0, 5)), gathers=True, chunks=chunks)
    place = 1 + jnp.arange(q.shape[1]) / q.shape[1]
    h = jnp.tanh(q) * place[:, None].astype(q.dtype) + up[:, :, 0]
    return products(h, weights[2:], scaling(slice(5, 8)), gathers=False, scatters=True, chunks=chunks)[0]


def derivatives(chunks: int | None, *given: jax.Array) -> tuple[jax.Array, ...]:
    """The output, and what its derivatives with respect to all arguments, the input, and the weights give."""
    x, *weights, dy = vary(given)
    seen = vary(jnp.zeros(8))
    y, whole = jax.vjp(partial(block, chunks), x, *weights, seen)
    _, inputs = jax.vjp(lambda x: block(chunks, x, *weights, seen), x)
    _, later = jax.vjp(lambda *weights: block(chunks, x, *weights, seen), *weights)
    *cotangents, magnitudes = whole(dy)
    return *alike((y, *cotangents, *inputs(dy), *later(dy))), magnitudes[None]


def alike(tree: Any) -> Any:
    """As the type of something that axes of size 1 do not split."""
    return jax.tree.map(lambda x: jax.lax.pmax(x, tuple(axis for axis in AXES if axis != "tensor")), tree)


EACH = (PARTS, COLUMNS, COLUMNS, ROWS)
OUT = (PARTS, *EACH, *EACH, P(AXES))


def on_ranks(ranks: int, function: Any, dtype: str = "float32") -> Any:
    return jax.jit(mapped(function, mesh_of(tensor=ranks), dtype, (*EACH, PARTS), OUT))


@pytest.mark.matrix(quick=("2-2",), ci=1)
@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (2, 2), (4, 1), (4, 2)])
def test_a_ring_has_the_numbers_of_the_plain_products(ranks: int, chunks: int):
    """The codes are the same bits, so what differs is the order of sums: far less than a rounding to 8 bits."""
    given = arguments(ranks)
    plain, ring = (on_ranks(ranks, partial(derivatives, how))(*given) for how in (None, chunks))
    for wanted, found in zip(plain, ring, strict=True):
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert (np.asarray(plain[-1]) > 0).all(), "magnitudes of all tensors"


@pytest.mark.parametrize("chunks", [None, 2])
def test_what_is_gathered_travels_as_codes(chunks: int | None):
    """Bytes by dtype: inputs and gradients of outputs one byte a number, partial sums two; forward and backward."""
    ranks = 2

    def backward(*given: jax.Array) -> Any:
        x, *weights, dy = vary(given)
        y, pullback = jax.vjp(lambda x, *weights: block(chunks, x, *weights, vary(jnp.zeros(8))), x, *weights)
        return alike((y, *pullback(dy)))

    sent: Counter[str] = Counter()
    mesh = mesh_of(tensor=ranks)
    program = mapped(backward, mesh, "bfloat16", (*EACH, PARTS), (PARTS, *EACH))
    for equation, times in operations(program, *arguments(ranks, jnp.bfloat16)):
        name = equation.primitive.name
        if name in ("all_gather", "reduce_scatter", "ppermute"):
            [value] = equation.invars
            size = value.aval.size * value.aval.dtype.itemsize
            sent[value.aval.dtype.name] += times * SENT[name](size, group_size(mesh, equation))
    numbers = BATCH * PART * EMBED * (ranks - 1)
    assert sent == {"float8_e4m3fn": 2 * numbers, "float8_e5m2": numbers, "bfloat16": 2 * 2 * numbers}
