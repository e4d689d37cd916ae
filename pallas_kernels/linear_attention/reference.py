"""The state through chunks in plain JAX, on any platform, and what kernels do of it, in plain JAX too."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from pallas_kernels.linear_attention.chunk import Chunk, Passed, Prepare

_product = partial(jnp.einsum, preferred_element_type=jnp.float32)


def scan_chunks(
    prepare: Prepare,
    inputs: PyTree,
    fixed: PyTree,
    state: Float[Array, "*batch key value"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "chunks *batch seq value"], Float[Array, "*batch key value"]]:
    """Like `api.scan_chunks`. The backward computes each chunk again; `interpret` has no effect here."""
    del interpret

    def chunk(state: jax.Array, xs: tuple[PyTree, PyTree]) -> tuple[jax.Array, jax.Array]:
        one = prepare(*xs)
        made = one.made if one.removed is None else one.made - jnp.einsum("...sk,...kv->...sv", one.removed, state)
        out = jnp.einsum("...sk,...kv->...sv", one.read, state) + jnp.einsum("...st,...tv->...sv", one.scores, made)
        return one.keep[..., None] * state + jnp.einsum("...sk,...sv->...kv", one.write, made), out

    state, out = lax.scan(jax.checkpoint(chunk), state, (inputs, fixed))
    return out, state


def forward(chunks: Chunk, state: Float[Array, "heads key value"], *, save: bool, interpret: bool = False) -> Passed:
    """Like `mosaic.forward`, with the same roundings."""
    del save, interpret

    def chunk(state: jax.Array, one: Chunk) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        before, made = state.astype(one.read.dtype), one.made
        if one.removed is not None:
            made = (made - _product("hsk,hkv->hsv", one.removed, before)).astype(made.dtype)
        out = _product("hsk,hkv->hsv", one.read, before) + _product("hst,htv->hsv", one.scores, made)
        return one.keep[..., None] * state + _product("hsk,hsv->hkv", one.write, made), (out.astype(made.dtype), before)

    end, (out, states) = lax.scan(chunk, state, chunks)
    return Passed(out, states, end)


def backward(chunks: Chunk, d_end: Float[Array, "heads key value"], *, interpret: bool = False) -> Passed:
    """Like `mosaic.backward`, with the same roundings."""
    del interpret

    def chunk(d_next: jax.Array, one: Chunk) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        behind, d_out = d_next.astype(one.read.dtype), one.made
        d_made = _product("hts,htv->hsv", one.scores, d_out) + _product("hsk,hkv->hsv", one.write, behind)
        d_made = d_made.astype(d_out.dtype)
        d_state = one.keep[..., None] * d_next + _product("hsk,hsv->hkv", one.read, d_out)
        if one.removed is not None:
            d_state = d_state - _product("hsk,hsv->hkv", one.removed, d_made)
        return d_state, (d_made, behind)

    d_state, (d_made, d_states) = lax.scan(chunk, d_end, chunks, reverse=True)
    return Passed(d_made, d_states, d_state)
