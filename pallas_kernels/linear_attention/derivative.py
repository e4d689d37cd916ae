"""The state through chunks by kernels, with its derivative.

Kernels do what has to be done chunk after chunk; the rest of each chunk is plain JAX, for `SECTION` chunks at a time.
With S before a chunk, G for the gradient of the state behind it, and that of u from the kernel, d:

    d_read = d_out S^T    d_scores = d_out u^T    d_made = d    d_removed = -d S^T    d_write = u G^T    d_keep = S * G
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from pallas_kernels.linear_attention import mosaic
from pallas_kernels.linear_attention.chunk import Chunk, Passed, Prepare
from pallas_kernels.varying import vary_alike, vary_over, varying_axes
from pallas_kernels.vjp_parts import custom_vjp

DTYPE = jnp.bfloat16
"""Dtype of operands of products. Sums, and the state between chunks, are float32."""
SECTION = 16
"""Chunks that are prepared together: 1,024 tokens of all rows and heads, so that it needs little memory."""


class Static(NamedTuple):
    """Static arguments."""

    prepare: Prepare
    kernels: Any
    """The module that has `forward` and `backward`."""
    interpret: bool


def scan_chunks(
    prepare: Prepare,
    inputs: PyTree,
    fixed: PyTree,
    state: Float[Array, "*batch key value"],
    *,
    kernels: Any = mosaic,
    interpret: bool = False,
) -> tuple[Float[Array, "chunks *batch seq value"], Float[Array, "*batch key value"]]:
    """Like `api.scan_chunks`; `reference` has the kernels in plain JAX."""
    return _scanned(Static(prepare, kernels, interpret), *vary_alike((inputs, fixed, state)))


@custom_vjp(0)
def _scanned(static: Static, inputs: PyTree, fixed: PyTree, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    passed = _passed(static, inputs, fixed, state, save=False)
    return passed.rows.astype(jnp.float32), passed.end


def _forward(static: Static, inputs: PyTree, fixed: PyTree, state: jax.Array) -> tuple[Any, Any]:
    passed = _passed(static, inputs, fixed, state, save=True)
    return (passed.rows.astype(jnp.float32), passed.end), (inputs, fixed, passed.states)


def _passed(static: Static, inputs: PyTree, fixed: PyTree, state: jax.Array, *, save: bool) -> Passed:
    chunks = _prepared(static.prepare, inputs, fixed)
    return _launch(partial(static.kernels.forward, save=save, interpret=static.interpret), chunks, state)


def _backward(static: Static, saved: tuple[PyTree, PyTree, jax.Array], gradients: tuple[Any, Any]) -> tuple[Any, ...]:
    inputs, fixed, states = saved
    d_out, d_end = gradients
    d_out = d_out.astype(DTYPE)
    chunks = _prepared(static.prepare, inputs, fixed)._replace(made=d_out)
    d_made, d_states, d_state = _launch(partial(static.kernels.backward, interpret=static.interpret), chunks, d_end)
    of_inputs = lambda xs: _of_inputs(static.prepare, *xs)
    d_inputs = lax.map(of_inputs, (inputs, fixed, states, d_states, d_made, d_out), batch_size=SECTION)
    return d_inputs, None, d_state


_scanned.defvjp(_forward, _backward)


def _prepared(prepare: Prepare, inputs: PyTree, fixed: PyTree) -> Chunk:
    """The operands of all chunks, rounded."""
    return lax.map(lambda xs: _rounded(prepare(*xs)), (inputs, fixed), batch_size=SECTION)


def _rounded(chunk: Chunk) -> Chunk:
    """The operands as kernels multiply them."""
    removed = None if chunk.removed is None else chunk.removed.astype(DTYPE)
    read, scores, made, write = (x.astype(DTYPE) for x in (chunk.read, chunk.scores, chunk.made, chunk.write))
    keep = jnp.broadcast_to(chunk.keep, (*chunk.keep.shape[:-1], read.shape[-1])).astype(jnp.float32)
    return Chunk(read, scores, made, removed, write, keep)


def _of_inputs(
    prepare: Prepare,
    inputs: PyTree,
    fixed: PyTree,
    state: Float[Array, "*batch key value"],
    d_next: Float[Array, "*batch key value"],
    d_made: Float[Array, "*batch seq value"],
    d_out: Float[Array, "*batch seq value"],
) -> PyTree:
    """Gradients of a chunk's inputs; `d_next` is that of the state behind it."""
    chunk, pull = jax.vjp(lambda inputs: prepare(inputs, fixed), inputs)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    made, removed = _rounded(chunk).made, None
    if chunk.removed is not None:
        made = made - product("...sk,...kv->...sv", chunk.removed.astype(DTYPE), state)
        made, removed = made.astype(DTYPE), -product("...sv,...kv->...sk", d_made, state)
    d_keep = jnp.sum(state.astype(jnp.float32) * d_next.astype(jnp.float32), axis=-1)
    gradients = Chunk(
        read=product("...sv,...kv->...sk", d_out, state),
        scores=product("...sv,...tv->...st", d_out, made),
        made=d_made.astype(jnp.float32),
        removed=removed,
        write=product("...sv,...kv->...sk", made, d_next),
        keep=d_keep if chunk.keep.shape[-1] > 1 else jnp.sum(d_keep, axis=-1, keepdims=True),
    )
    return pull(gradients)[0]


def _launch(kernel: Any, chunks: Chunk, state: Float[Array, "*batch key value"]) -> Passed:
    """The result of a kernel, whose arrays have one dim for all rows and heads."""
    batch = state.shape[:-2]
    joined = jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[1 + len(batch) :]), chunks)
    passed = kernel(joined, state.reshape(-1, *state.shape[-2:]))
    split = lambda x: x.reshape(x.shape[0], *batch, *x.shape[2:])
    states = None if passed.states is None else split(passed.states)
    made = Passed(split(passed.rows), states, passed.end.reshape(state.shape))
    return vary_over(made, varying_axes(state))  # a launch forgets what its results vary over
