"""Rings of collective matmuls: the numbers and the bytes of the plain ones, and nothing that exists whole."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxpar.config.plan import Choice, TensorOverlap
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collective_matmul import PLAIN_OVERLAP, gather_matmul, matmul_scatter, product
from tests.sentences import refused
from tests.traced import mesh_of, operations, sent_bytes

BATCH, PART, EMBED, WIDTH = 2, 8, 6, 3
DRAW = np.random.default_rng(0)
PARTS, COLUMNS, ROWS = P(None, "tensor"), P(None, "tensor"), P("tensor")


def arguments(ranks: int) -> tuple[np.ndarray, ...]:
    """x, a matrix with heads, one without, their counterparts back, and the cotangent of the output."""
    normal = lambda *shape: DRAW.standard_normal(shape).astype(np.float32)
    tokens = (BATCH, PART * ranks, EMBED)
    heads, hidden = (EMBED, ranks, 2), (EMBED, WIDTH * ranks)
    return normal(*tokens), normal(*heads), normal(*hidden), normal(ranks, 2, EMBED), normal(WIDTH * ranks, EMBED), \
        normal(*tokens)  # fmt: skip


def block(overlap: TensorOverlap, x: jax.Array, *w: jax.Array) -> jax.Array:
    """What a layer does: in, something that differs from token to token, out.

    Were all tokens treated alike, chunks that a gather leaves in wrong places could come back by a wrong scatter.
    """
    q, up = gather_matmul(x, w[:2], overlap)
    place = 1 + jnp.arange(q.shape[1]) / q.shape[1]
    return matmul_scatter((jnp.tanh(q) * place[:, None, None], jnp.sin(up) * place[:, None]), w[2:], overlap)


def derivatives(overlap: TensorOverlap, *given: jax.Array) -> tuple[jax.Array, ...]:
    """The output, and what its derivatives with respect to all arguments, the input, and two matrices give."""
    x, w1, w2, w3, w4, dy = vary(given)
    y, whole = jax.vjp(partial(block, overlap), x, w1, w2, w3, w4)
    _, inputs = jax.vjp(lambda x: block(overlap, x, w1, w2, w3, w4), x)
    _, weights = jax.vjp(lambda into, out: block(overlap, x, w1, into, w3, out), w2, w4)
    return alike((y, *whole(dy), *inputs(dy), *weights(dy)))


def alike(tree: Any) -> Any:
    """As the type of something that axes of size 1 do not split."""
    return jax.tree.map(lambda x: jax.lax.pmax(x, ("pipe", "replica", "fsdp", "expert", "context")), tree)


IN = (PARTS, COLUMNS, COLUMNS, ROWS, ROWS)
OUT = (PARTS, *IN, PARTS, COLUMNS, ROWS)


def on_ranks(ranks: int, function: Any, outputs: Any = OUT) -> Any:
    return jax.shard_map(function, mesh=mesh_of(tensor=ranks), in_specs=(*IN, PARTS), out_specs=outputs)


@pytest.mark.matrix(quick=("4-2",), ci=1)
@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (4, 1), (2, 2), (4, 2), (4, 4)])
def test_a_ring_has_the_numbers_of_the_plain_collectives(ranks: int, chunks: int):
    """A derivative that is asked for alone, as by a backward that is split, has those of the whole one."""
    given = arguments(ranks)
    plain, ring = (
        jax.jit(on_ranks(ranks, partial(derivatives, overlap)))(*given)
        for overlap in (PLAIN_OVERLAP, TensorOverlap(Choice("ring"), chunks))
    )
    for wanted, found in zip(plain, ring, strict=True):
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def given_shapes(ranks: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments(ranks)]


def forward(overlap: TensorOverlap, *given: jax.Array) -> jax.Array:
    return alike(block(overlap, *vary(given)[:-1]))


def backward(overlap: TensorOverlap, *given: jax.Array) -> Any:
    """With the forward, of whose outputs none is needed but what is kept."""
    *arguments, dy = vary(given)
    return alike(jax.vjp(partial(block, overlap), *arguments)[1](dy))


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_ring_sends_the_bytes_of_the_docstrings(chunks: int):
    n, x = 4, 4 * BATCH * PART * EMBED
    (of_gather,), (of_scatter,) = (
        re.findall(r"Sends `([^`]*)` bytes", str(f.__doc__)) for f in (gather_matmul, matmul_scatter)
    )
    gather, scatter = eval(of_gather, {"x": x, "n": n}), eval(of_scatter, {"x": x * n, "n": n})
    sent = lambda function, outputs, overlap: sent_bytes(
        mesh_of(tensor=n), on_ranks(n, partial(function, overlap), outputs), *given_shapes(n)
    )
    ring = TensorOverlap(Choice("ring"), chunks)
    assert sent(forward, PARTS, ring) == {"ppermute": gather + scatter}
    assert sum(sent(forward, PARTS, PLAIN_OVERLAP).values()) == gather + scatter
    # The input and the output's gradient are gathered, and the input's gradient is scattered.
    assert sent(backward, IN, ring)["ppermute"] - gather == 2 * gather + scatter


@pytest.mark.parametrize("function", [forward, backward])
def test_no_sequence_of_the_residual_stream_exists_whole(function: Any):
    outputs = PARTS if function is forward else IN

    def whole(overlap: TensorOverlap) -> bool:
        shapes = {
            tuple(variable.aval.shape)
            for equation, _ in operations(on_ranks(4, partial(function, overlap), outputs), *given_shapes(4))
            for variable in equation.outvars
        }
        return (BATCH, 4 * PART, EMBED) in shapes

    assert whole(PLAIN_OVERLAP)
    assert not whole(TensorOverlap(Choice("ring"), 2))


@pytest.mark.parametrize("function", [gather_matmul, lambda x, w, overlap: matmul_scatter((x,), w, overlap)])
@pytest.mark.parametrize("overlap", [PLAIN_OVERLAP, TensorOverlap(Choice("ring"))])
def test_a_value_that_all_ranks_hold_alike_is_refused(function: Any, overlap: TensorOverlap):
    program = jax.shard_map(
        lambda x, w: function(x, (w,), overlap), mesh=mesh_of(tensor=4), in_specs=P(), out_specs=PARTS
    )
    with refused("over ('tensor',)", "same on all ranks of ['tensor']", error=ValueError):
        jax.eval_shape(program, jax.ShapeDtypeStruct((2, 8, 6), jnp.float32), jax.ShapeDtypeStruct((6, 4), jnp.float32))


def test_the_gradient_of_a_wider_matrix_is_not_rounded():
    """The products are those of the narrow matrix; its gradient is the product's sum in float32."""
    x, w, dy = (
        jnp.asarray(DRAW.standard_normal(shape), jnp.bfloat16) for shape in ((2, 8, 6), (6, 2, 3), (2, 8, 2, 3))
    )
    y, pullback = jax.vjp(product, x, w.astype(jnp.float32))
    narrow, of_narrow = jax.vjp(product, x, w)
    (dx, dw), (narrow_dx, _) = pullback(dy), of_narrow(dy)
    assert y.dtype == dx.dtype == jnp.bfloat16 and dw.dtype == jnp.float32
    np.testing.assert_array_equal(y, narrow)
    np.testing.assert_array_equal(dx, narrow_dx)
    exact = np.einsum("bse,bshd->ehd", *(np.asarray(a, np.float64) for a in (x, dy)))
    np.testing.assert_allclose(dw, exact, rtol=1e-5, atol=1e-5)
    rounded = np.asarray(jnp.asarray(dw, jnp.bfloat16), np.float64)
    assert np.abs(rounded - exact).max() > 1e-3, "a rounded gradient would not pass"
