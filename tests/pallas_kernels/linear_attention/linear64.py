"""Linear attention token by token in float64, with a state before the tokens; and chunks of random numbers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.linear_attention import CHUNK, Chunk


class Case(NamedTuple):
    """Rows of tokens."""

    tokens: int
    heads: int
    key: int
    value: int
    delta: bool
    by_key: bool
    """A decay of each key dim."""
    gate: float = 1.0
    """The strongest log decay; all are below, over three powers of ten. With 0 nothing decays."""
    documents: int = 3
    rows: int = 1


class Streams(NamedTuple):
    """Inputs of the recurrence: [rows, tokens, heads, ...]."""

    query: Any
    key: Any
    value: Any
    decay: Any
    rate: Any


def streams(case: Case) -> tuple[Streams, Any, Any]:
    """Numbers as mixers make them, documents [rows, tokens], and a first state that the first document goes on with."""
    draw = np.random.default_rng(0)
    shape = case.rows, case.tokens, case.heads
    normal = lambda *sizes: draw.normal(size=(*shape, *sizes))
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    decay = -case.gate * 10.0 ** draw.uniform(-3, 0, size=(*shape, case.key if case.by_key else 1))
    rate = draw.uniform(size=shape) if case.delta else None
    documents = np.sort(draw.integers(1, case.documents + 1, (case.rows, case.tokens)), axis=1)
    state = draw.normal(size=(case.rows, case.heads, case.key, case.value))
    found = Streams(normal(case.key) * case.key**-0.5, unit(normal(case.key)), normal(case.value), decay, rate)
    return found, documents, state


def recurrence(streams: Streams, documents: Any, state: Any) -> tuple[Any, Any]:
    """Outputs [rows, tokens, heads, value], and the state behind all tokens, in the dtype of what is given."""
    continues = jnp.pad(documents[:, 1:] == documents[:, :-1], ((0, 0), (1, 0)), constant_values=True)

    def token(state: Any, xs: Any) -> Any:
        (q, k, v, g, rate), continues = xs
        state = jnp.where(continues[:, None, None, None], state, 0) * jnp.exp(g)[..., None]
        if rate is not None:
            v = rate[..., None] * (v - jnp.einsum("bhkv,bhk->bhv", state, k))
        state = state + k[..., None] * v[..., None, :]
        return state, jnp.einsum("bhkv,bhk->bhv", state, q)

    by_token = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (streams, continues))
    state, out = jax.lax.scan(token, state, by_token)
    return jnp.moveaxis(out, 0, 1), state


def results(
    run: Any, streams: Streams, documents: Any, state: Any, of_cotangent: Any = lambda x: x
) -> dict[str, np.ndarray]:
    """Outputs, the last state, and gradients of all of both, for cotangents of random numbers."""
    (out, end), pull = jax.vjp(lambda streams, state: run(streams, documents, state), streams, state)
    draw = np.random.default_rng(1)
    d_streams, d_state = pull(tuple(of_cotangent(jnp.asarray(draw.normal(size=x.shape), x.dtype)) for x in (out, end)))
    found = {"out": out, "end": end, "first": d_state} | d_streams._asdict()
    return {name: np.asarray(x) for name, x in found.items() if x is not None}


def float64(case: Case, *, rounded: bool = False) -> dict[str, np.ndarray]:
    """The results of a case, or of one whose operands (queries, keys, values, the first state and
    cotangents) are rounded to bfloat16."""
    low = lambda x: x.astype(jnp.bfloat16).astype(x.dtype)
    with jax.enable_x64():
        given, documents, state = jax.tree.map(jnp.asarray, streams(case))
        if rounded:
            given, state = Streams(*map(low, given[:3]), given.decay, given.rate), low(state)
        return results(recurrence, given, documents, state, low if rounded else lambda x: x)


def chunks(count: int, heads: int, key: int, value: int, delta: bool) -> tuple[Chunk, jax.Array]:
    """Operands of chunks as kernels get them, and a state [heads, key, value]."""
    draw = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(draw.normal(size=(count, heads, *shape)) * shape[-1] ** -0.5, jnp.bfloat16)
    keep = jnp.asarray(draw.uniform(size=(count, heads, key)), jnp.float32)
    removed = normal(CHUNK, key) if delta else None
    found = Chunk(normal(CHUNK, key), normal(CHUNK, CHUNK), normal(CHUNK, value), removed, normal(CHUNK, key), keep)
    return found, jnp.asarray(draw.normal(size=(heads, key, value)), jnp.float32)
