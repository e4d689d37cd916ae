"""The recurrence of a row whose contiguous parts are on context ranks.

A rank's tokens alone give out + read S and M S + N, from the state S before them: M and N leave for the other ranks
first, and the outputs are computed meanwhile. The gradient of S is affine in that of the state behind likewise, with
M^T, so that ranks exchange it in reverse; what each has then to derive is its part alone, from S. States and maps are
saved for that, whatever is recomputed: they are small, and making them takes a message.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxpar.config.plan import LayerLayout
from jaxpar.layers.context import TokenContext
from jaxpar.layers.linear_attention.recurrence import Streams, scan, state_gradient
from jaxpar.layers.linear_attention.transports import TRANSPORTS, Fold, State, behind, transposed
from jaxpar.mesh.axes import vary
from jaxpar.runtime.passes import ALWAYS_SAVED

type Result = tuple[Float[Array, "batch seq heads value"], State]


class Alone(NamedTuple):
    """The effect of a rank's tokens: `out` + `read` S are their outputs, and `fold` is their effect on S."""

    out: Float[Array, "batch seq heads value"]
    read: Float[Array, "batch seq heads key"]
    fold: Fold


class Part(NamedTuple):
    """The tokens of a rank."""

    streams: Streams
    segments: Int[Array, "batch seq"]
    document: Int[Array, " batch"]
    """The document before them, to which S belongs."""


def recur(streams: Streams, tokens: TokenContext, layout: LayerLayout) -> Result:
    """The outputs of this context rank's tokens, and the state behind them."""
    segments = tokens.segments
    if lax.axis_size("context") == 1:
        return scan(streams, segments, _nothing(streams), segments[:, 0], backend=layout.linear_backend)
    last = tokens.row_segments.reshape(segments.shape[0], -1, segments.shape[1])[:, :, -1]
    part = Part(streams, segments, vary(last[:, jnp.maximum(lax.axis_index("context") - 1, 0)]))
    alone = _alone(lax.stop_gradient(part), layout.linear_backend)
    before, made = TRANSPORTS[layout.states].before(alone.fold, alone.out)
    before, mapped = (checkpoint_name(x, ALWAYS_SAVED) for x in (before, alone.fold.mapped))
    out = made + jnp.einsum("bshk,bhkv->bshv", alone.read, before)
    return _derived(layout, part, before, mapped, (out, behind(before, alone.fold)))


def _alone(part: Part, backend: str) -> Alone:
    """The effect of a rank's tokens. Without the delta rule M and N are sums over tokens; with it, a state has columns
    for M beside those of values."""
    (streams, segments, document), nothing = part, _nothing(part.streams)
    if streams.rate is None:
        read, write, mapped = _edges(part)
        fold = Fold(mapped, jnp.einsum("bshk,bshv->bhkv", write, streams.value.astype(jnp.float32)))
        return Alone(scan(streams, segments, nothing, document, backend=backend)[0], read, fold)
    width = nothing.shape[2]
    value = jnp.pad(streams.value, ((0, 0), (0, 0), (0, 0), (width, 0)))
    state = jnp.concatenate([jnp.broadcast_to(jnp.eye(width), (*nothing.shape[:3], width)), nothing], axis=-1)
    out, state = scan(streams._replace(value=value), segments, vary(state), document, backend=backend)
    return Alone(out[..., width:], out[..., :width], Fold(state[..., :width], state[..., width:]))


def _edges(part: Part) -> tuple[Float[Array, "batch seq heads key"], Float[Array, "batch seq heads key"], Array]:
    """Without the delta rule: queries that read the state before a rank's tokens, keys that write that behind them, and
    the diagonal of the map from the former to the latter."""
    streams, segments, document = part
    q, k, g = (x.astype(jnp.float32) for x in (streams.query, streams.key, streams.decay))
    left = jnp.pad(lax.cumsum(g, axis=1, reverse=True)[:, 1:], ((0, 0), (0, 1), (0, 0), (0, 0)))  # behind a token
    continues, stays = (x[..., None, None] for x in (segments == document[:, None], segments == segments[:, -1:]))
    decayed = jnp.cumsum(g, axis=1)
    mapped = jnp.where(continues[:, -1], jnp.exp(decayed[:, -1]), 0)
    return q * jnp.where(continues, jnp.exp(decayed), 0), jnp.where(stays, k * jnp.exp(left), 0), mapped


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _derived(layout: LayerLayout, part: Part, before: State, mapped: Array, result: Result) -> Result:
    """The `result` for a rank's tokens, with its derivative in their streams."""
    del layout, part, before, mapped
    return result


def _save(
    layout: LayerLayout, part: Part, before: State, mapped: Array, result: Result
) -> tuple[Result, tuple[Part, State, Array]]:
    del layout
    return result, (part, before, mapped)


def _derive(layout: LayerLayout, saved: tuple[Part, State, Array], gradients: Result) -> tuple[Part, None, None, None]:
    part, before, mapped = saved
    (streams, segments, document), (out, after) = part, gradients
    if streams.rate is None:
        gradient = jnp.einsum("bshk,bshv->bhkv", _edges(part)[0], out) + mapped[..., None] * after
    else:
        gradient = state_gradient(streams, segments, document, out, after)
    _, pull = jax.vjp(lambda streams: scan(streams, segments, before, document, backend=layout.linear_backend), streams)
    arrived, pull = TRANSPORTS[layout.states].before(transposed(Fold(mapped, gradient)), pull, reverse=True)
    return Part(*pull((out, after + arrived)), None, None), None, None, None  # type: ignore[arg-type]


_derived.defvjp(_save, _derive)


def _nothing(streams: Streams) -> State:
    """The state before a document."""
    batch, _, heads, width = streams.key.shape
    return vary(jnp.zeros((batch, heads, width, streams.value.shape[-1]), jnp.float32))
