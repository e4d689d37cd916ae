"""Every public function takes `interpret=True` and nothing else on a machine without a GPU."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels as kernels
from pallas_kernels.attention.registry import REGISTRY as ATTENTION
from pallas_kernels.choice import Registry, Unsupported
from pallas_kernels.grouped_matmul.registry import REGISTRY as GROUPED
from pallas_kernels.linear_attention.chunk import Chunk
from pallas_kernels.linear_attention.registry import REGISTRY as LINEAR
from pallas_kernels.tiled_matmul.registry import REGISTRY as TILED

DRAW = np.random.default_rng(5)


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(DRAW.normal(size=shape) * 0.3, jnp.bfloat16)


ROWS, SIZES, UP = drawn(64, 128), jnp.array([20, 44]), drawn(2, 128, 64)
HEADS, SQUARE = drawn(1, 32, 2, 64), drawn(64, 64)


def square_chunk(x: jax.Array, _: tuple[()]) -> Chunk:
    x = x.astype(jnp.float32)
    return Chunk(x, x @ x.T, x, x, x, x[0])


CODES, SCALES = jnp.ones((128, 128), jnp.float8_e4m3fn), jnp.ones((128, 1))

FUNCTIONS: dict[str, tuple[Registry[Any], Callable[..., jax.Array], jax.Array]] = {
    "attention": (ATTENTION, lambda q, **more: kernels.flash_attention(q, HEADS, HEADS, causal=True, **more), HEADS),
    "grouped matmul": (GROUPED, lambda rows, **more: kernels.grouped_matmul(rows, UP, SIZES, **more), ROWS),
    "grouped tiled matmul": (
        TILED,
        lambda codes, **more: kernels.tiled_matmul(
            codes, SCALES, CODES[None], SCALES[None], jnp.array([128]), **more
        ),
        CODES,
    ),
    "linear attention": (
        LINEAR,
        lambda rows, **more: kernels.scan_chunks(
            square_chunk, rows[None], (), jnp.zeros((64, 64)), **more
        )[0],
        SQUARE,
    ),
    "tiled matmul": (
        TILED, lambda codes, **more: kernels.tiled_matmul(codes, SCALES, CODES, SCALES, **more), CODES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_implementation_is_traced_for_the_interpreter_without_further_arguments(name: str):
    """With its derivative; that their numbers are right is tested beside each kernel."""
    registry, function, x = FUNCTIONS[name]
    traced = []
    for implementation in ("auto", *(entry.name for entry in registry.entries)):
        run = lambda x, name=implementation: function(x, implementation=name, interpret=True)
        try:
            out = jax.eval_shape(run, x)
            if x.dtype == jnp.bfloat16:
                out = jax.eval_shape(jax.grad(lambda x, run=run: run(x).astype(jnp.float32).sum()), x)
                assert out.shape == x.shape
        except Unsupported:
            continue
        traced.append(implementation)
    assert {"auto", "xla"} <= set(traced)
