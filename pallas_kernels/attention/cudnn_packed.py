"""cuDNN's attention over packed documents, which it takes by their lengths and offsets, from Hopper on.

JAX has this layout in a private function alone, `jax._src.cudnn.fused_attention_stablehlo` (the test of this module
states what it relies on). A call has room for a number of documents of each row (`Room`): XLA gives cuDNN scratch
memory for the gradient of that many rows of queries, in float32, though the documents together are one row. Rows with
more documents take as many calls as they need, so that any packing is computed exactly. Where a backward call of all
rows and heads has room for too few, it is of some of the rows, or of some of the heads of one row.

The log-sum-exp comes back by document; what is kept for the backward is that of each token, as of any attention. It is
not given out, because cuDNN's backward has no derivative through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.attention.derivative import name_residuals
from pallas_kernels.attention.packed_room import FEWEST, SCRATCH, Room, Shape
from pallas_kernels.attention.request import Request
from pallas_kernels.varying import vary_alike, vary_over, varying_axes
from pallas_kernels.vjp_parts import custom_vjp

MODULE = "jax._src.cudnn.fused_attention_stablehlo"
CALLS = "calls_of_packed_attention"
"""The scope of the loop whose iterations only the documents decide."""


def refusal(request: Request) -> str | None:
    """Why the packed layout does not compute what is asked for; None if it does, or if that depends on the device."""
    if (request.compute_capability or 0.0) < 9.0:
        return f"its packed layout needs compute capability 9.0 (Hopper), and the GPU has {request.compute_capability}"
    if not request.runs:
        return "its packed layout takes documents whose tokens are neighbours, which is not known of this request"
    if not request.mask.causal:
        return "its packed layout is used for causal masks alone"
    if request.elements > 2**31 - 1:
        return f"its packed layout has 32-bit offsets, and an array has {request.elements:,} elements"
    room = Room.of(Shape.of(request))
    if (documents := min(room.forward, room.backward)) < FEWEST:
        return (
            f"its packed layout takes scratch memory for each document of a call, and {SCRATCH >> 30} GiB are enough "
            f"for {documents} of one row and KV head, fewer than {FEWEST}"
        )
    return missing()


def missing() -> str | None:
    """The first function that this version of jax lacks, in a clause; None if all are there."""
    try:
        inside = import_module(MODULE)
    except ImportError:
        return f"this jax has no {MODULE}"
    needed = ("dot_product_attention", "MaskType", "AttentionLayout", "_dot_product_attention_bwd_rule")
    absent = [name for name in needed if not hasattr(inside, name)]
    return f"{MODULE} of this jax has no {absent[0]}" if absent else None


class Documents(NamedTuple):
    """The documents of rows: neighbouring tokens of one segment. Padding is a document too."""

    index: Int[Array, "batch seq"]
    """Index in its row of each token's document."""
    start: Int[Array, "batch seq"]
    """Position of the first token of each token's document."""

    @classmethod
    def of(cls, segments: Int[Array, "batch seq"]) -> Documents:
        first = jnp.pad(segments[:, 1:] != segments[:, :-1], [(0, 0), (1, 0)], constant_values=True)
        places = lax.broadcasted_iota(jnp.int32, segments.shape, 1)
        start = lax.cummax(jnp.where(first, places, 0), axis=1)
        return cls(jnp.cumsum(first, 1, dtype=jnp.int32) - 1, start)

    def part(self, step: Any, room: int) -> Part:
        """The documents of call `step`, at most `room` of each row."""
        batch, length = self.index.shape
        index = self.index - step * room
        inside = (index >= 0) & (index < room)
        row = jnp.arange(batch)[:, None]
        at = row, jnp.where(inside, index, room)
        lengths = jnp.zeros((batch, room + 1), jnp.int32).at[at].add(1)[:, :room]
        starts = jnp.full((batch, room + 1), -1, jnp.int32).at[at].max(self.start).at[:, room].set(-1)
        there = lengths > 0
        before = jnp.cumsum(there.sum(1, dtype=jnp.int32)) - there.sum(1, dtype=jnp.int32)
        places = lax.broadcasted_iota(jnp.int32, (batch, length), 1) - self.start
        return Part(
            jnp.where(there, lengths, -1), starts, inside, jnp.where(inside, before[:, None] + index, 0), places
        )


class Part(NamedTuple):
    """The documents of one call, as jax's function takes them."""

    lengths: Int[Array, "batch room"]
    """Length of each document; -1 after the last one of a row."""
    offsets: Int[Array, "batch room_and_one"]
    inside: Bool[Array, "batch seq"]
    """The tokens that the call attends."""
    document: Int[Array, "batch seq"]
    """Index among the documents of all rows, for each token of `inside`."""
    position: Int[Array, "batch seq"]
    """Position of each token in its document."""


@dataclass(frozen=True)
class Static:
    """The static arguments of a call."""

    scale: float
    window: int | None
    room: Room


def attend(
    q: Float[Array, "batch seq heads width"],
    k: Float[Array, "batch seq kv_heads width"],
    v: Float[Array, "batch seq kv_heads value_width"],
    segments: Int[Array, "batch seq"],
    *,
    scale: float,
    window: int | None,
    room: Room | None = None,
) -> Float[Array, "batch seq heads value_width"]:
    """Causal attention within documents; padding (segment 0) has output 0.

    The tokens of a document are neighbours: a segment that comes back behind another one is another document. `room`
    is `Room.of` the shape where none is given, and of at least 2 documents: a single one would be a row that is not
    packed.
    """
    room = Room.of(_shape(q, k)) if room is None else room
    return _attend(Static(scale, window, room), *vary_alike((q, k, v, segments.astype(jnp.int32))))


def _shape(q: jax.Array, k: jax.Array) -> Shape:
    batch, queries, heads, width = q.shape
    return Shape(batch, queries, heads, k.shape[2], width)


@custom_vjp(0)
def _attend(static: Static, q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    return _forward(static, q, k, v, segments)[0]


def _forward(static: Static, q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> tuple[jax.Array, tuple]:
    documents = Documents.of(segments)
    inside, options = _inside(static)
    wide = widened(v, q)

    def call(part: Part, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        seen = {"q_seqlen": part.lengths, "kv_seqlen": part.lengths}
        seen |= {"q_offsets": part.offsets, "kv_offsets": part.offsets}
        out, statistics = inside.dot_product_attention(q, k, wide, **seen, **options, return_residual=True)
        lse = statistics[part.document, :, part.position]
        return _merged(part, carry, (out, lse))

    start = jnp.zeros(q.shape, q.dtype), jnp.zeros(q.shape[:3], jnp.float32)
    out, lse = _calls(documents, static.room.forward, call, vary_over(start, varying_axes(q)))
    out, lse = name_residuals(_without_padding(segments, narrowed(out, v)), lse)
    return out, (q, k, v, segments, out, lse)


def _backward(static: Static, residuals: tuple, d_out: jax.Array) -> tuple:
    q, k, v, segments, out, lse = residuals
    d_out = widened(_without_padding(segments, d_out.astype(q.dtype)), q)
    arrays = Arguments(q, k, widened(v, q), segments, widened(out, q), lse, d_out)
    shape = _shape(q, k)
    if static.room.parts(shape) == (1, 1):
        dq, dk, dv = _gradients(static, arrays)
    else:
        dq, dk, dv = _by_parts(static, shape, arrays)
    return dq, dk, narrowed(dv, v), None


class Arguments(NamedTuple):
    """Arrays of the backward, all of one width."""

    q: Float[Array, "batch seq heads width"]
    k: Float[Array, "batch seq kv_heads width"]
    v: Float[Array, "batch seq kv_heads width"]
    segments: Int[Array, "batch seq"]
    out: Float[Array, "batch seq heads width"]
    lse: Float[Array, "batch seq heads"]
    d_out: Float[Array, "batch seq heads width"]


def _by_parts(static: Static, shape: Shape, arrays: Arguments) -> tuple[jax.Array, ...]:
    """Gradients of all rows and heads, one part after the other, so that there is scratch memory of one."""
    part, (rows, heads) = static.room.part(shape), static.room.parts(shape)
    axes = varying_axes(arrays.q)

    def add_part(index: jax.Array, total: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        def bounds(x: jax.Array) -> tuple[list[Any], list[int]]:
            """The start indices of the part, and its sizes."""
            start, sizes = [jnp.zeros_like(index)] * x.ndim, [part.batch, *x.shape[1:]]
            start[0] = index // heads * part.batch
            if x.ndim > 2:
                sizes[2] = x.shape[2] // heads
                start[2] = index % heads * sizes[2]
            return [vary_over(at, axes) for at in start], sizes

        gradients = _gradients(static, Arguments(*(lax.dynamic_slice(x, *bounds(x)) for x in arrays)))
        write = lambda x, new: lax.dynamic_update_slice(x, new, bounds(x)[0])
        return tuple(write(x, new) for x, new in zip(total, gradients, strict=True))

    start = vary_over(jax.tree.map(jnp.zeros_like, arrays[:3]), axes)
    return lax.fori_loop(0, rows * heads, add_part, start)


def _gradients(static: Static, arrays: Arguments) -> tuple[jax.Array, ...]:
    """Gradients of queries, keys and values of one part."""
    q, k, v, segments, out, lse, d_out = arrays
    documents, room = Documents.of(segments), static.room.backward
    inside, options = _inside(static)
    layout, nothing = inside.AttentionLayout.BTNH.value, jnp.zeros(0, q.dtype)
    backward = inside._dot_product_attention_bwd_rule
    modified = "score_mod" in signature(backward).parameters  # jax 0.12: a function of the scores, and its arguments

    def call(part: Part, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        shape = (q.shape[0] * room, q.shape[2], q.shape[1])
        outside = jnp.where(part.inside, part.document, shape[0])  # dropped
        statistics = vary_over(jnp.zeros(shape, jnp.float32), varying_axes(q))
        statistics = statistics.at[outside, :, part.position].set(lse, mode="drop")
        of_documents = part.lengths, part.lengths, part.offsets, part.offsets
        residuals = (q, k, v, nothing, *of_documents, nothing, nothing, *(((),) if modified else ()), statistics, out)
        gradients = backward(
            options["scale"], 42, 0.0, (False, False), options["mask_type"], layout, options["sliding_window_length"],
            *((None, None) if modified else (True,)), False, residuals, d_out,
        )  # fmt: skip
        return _merged(part, carry, gradients[:3])

    start = vary_over(jax.tree.map(jnp.zeros_like, (q, k, v)), varying_axes(q))
    return _calls(documents, room, call, start)


_attend.defvjp(_forward, _backward)


def widened(x: jax.Array, like: jax.Array) -> jax.Array:
    """`x` with zeros behind its last dimension, up to that of `like`."""
    missing = like.shape[-1] - x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def narrowed(x: jax.Array, like: jax.Array) -> jax.Array:
    """The first of the last dimension of `x`, as many as `like` has."""
    return x[..., : like.shape[-1]]


def _inside(static: Static) -> tuple[Any, dict[str, Any]]:
    """jax's module, and the options that all calls share."""
    inside: Any = import_module(MODULE)
    options = {"scale": static.scale, "mask_type": inside.MaskType.PADDING_CAUSAL}
    return inside, options | {"sliding_window_length": static.window}


def _calls[Found](documents: Documents, room: int, call: Callable[[Part, Found], Found], carry: Found) -> Found:
    """Run `call` until the documents of every row are done."""
    most = documents.index.max() // room
    with jax.named_scope(CALLS):
        _, carry = lax.while_loop(
            lambda state: state[0] <= most,
            lambda state: (state[0] + 1, call(documents.part(state[0], room), state[1])),
            (vary_over(jnp.int32(0), varying_axes(most)), carry),
        )
    return carry


def _merged(part: Part, old: tuple[jax.Array, ...], new: tuple[jax.Array, ...]) -> Any:
    """`new` for the tokens of this call, `old` for others, which cuDNN leaves unwritten."""
    inside = lambda x: part.inside.reshape(part.inside.shape + (1,) * (x.ndim - 2))
    return tuple(jnp.where(inside(x), y, x) for x, y in zip(old, new, strict=True))


def _without_padding(segments: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where((segments > 0)[:, :, None, None], x, jnp.zeros((), x.dtype))
