"""`scan_chunks`: a state that passes through chunks of tokens, with gradients, on any platform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from pallas_kernels.device import INTERPRETER, Target, target
from pallas_kernels.linear_attention.chunk import Prepare
from pallas_kernels.linear_attention.registry import REGISTRY, Request


def scan_chunks(
    prepare: Prepare,
    inputs: PyTree[Float[Array, "chunks ..."]],
    fixed: PyTree[Array],
    state: Float[Array, "*batch key value"],
    *,
    dtype: Any = jnp.bfloat16,
    implementation: str = "auto",
    interpret: bool = False,
) -> tuple[Float[Array, "chunks *batch seq value"], Float[Array, "*batch key value"]]:
    """Outputs of all tokens, and the state behind them, float32, with gradients for `inputs` and `state`.

    Args:
        prepare: Makes a `Chunk`, float32, of the inputs of one chunk and of what is fixed of it, without other arrays.
            The backward calls it again.
        inputs: Arrays of all chunks.
        fixed: Arrays of all chunks that have no gradient, such as documents.
        state: Before the first chunk, float32.
        dtype: Of the operands of products, if a kernel runs; `xla` computes in float32.
        implementation: `auto`, or by name: see `registry.REGISTRY`.
        interpret: Run the kernels in Pallas' interpreter, for tests.

    Raises:
        ValueError: If shapes do not fit together, or what is named does not support them.
    """
    device = INTERPRETER if interpret else target()
    request = _request(prepare, inputs, fixed, state, str(jnp.dtype(dtype)), device)
    chosen = REGISTRY[REGISTRY.chosen(implementation, request).name]
    return chosen.scan_chunks(prepare, inputs, fixed, state, **({"interpret": True} if interpret else {}))


def _request(prepare: Prepare, inputs: PyTree, fixed: PyTree, state: jax.Array, dtype: str, device: Target) -> Request:
    """The request on a device. Raises `ValueError` where chunks do not fit to the state."""
    chunk = jax.eval_shape(lambda *xs: prepare(*jax.tree.map(lambda x: x[0], xs)), inputs, fixed)
    (size, key), value = chunk.read.shape[-2:], chunk.made.shape[-1]
    if state.shape != (*chunk.made.shape[:-2], key, value):
        raise ValueError(f"a state {state.shape}, and chunks of {chunk.made.shape[:-2]} states of {key} x {value}")
    chunks = jax.tree.leaves(inputs)[0].shape[0]
    heads = state.size // (key * value)
    return Request(chunks, heads, size, key, value, chunk.removed is not None, dtype=dtype, **device._asdict())
