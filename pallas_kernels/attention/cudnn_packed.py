"""cuDNN's attention over packed documents, given by their lengths and offsets, on Hopper and later.

JAX has this layout only in a private function, `jax._src.cudnn.fused_attention_stablehlo` (the test of this module
states what it relies on). A call attends a limited number of documents of each row (`Room`), because XLA allocates
scratch memory per document: a float32 gradient of a full row of queries. Rows with more documents take more calls, so
any packing is computed exactly. If scratch memory allows too few documents for all rows and heads, a backward call
covers some of the rows, or some of the heads of one row.

cuDNN returns the log-sum-exp per document; it is saved per token for the backward pass, as in the other kernels. It is
not an output, because cuDNN's backward pass has no derivative through it.
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
"""Scope of the loop whose number of iterations depends on the documents."""


def refusal(request: Request) -> str | None:
    """The reason why the packed layout does not support the request; None if it does, or if the device decides."""
    if (request.compute_capability or 0.0) < 9.0:
        return f"its packed layout needs compute capability 9.0 (Hopper), and the GPU has {request.compute_capability}"
    if not request.runs:
        return "its packed layout takes documents whose tokens are neighbours, which is not known of this request"
    if not request.mask.causal:
        return "its packed layout supports causal masks only"
    if request.elements > 2**31 - 1:
        return f"its packed layout has 32-bit offsets, and an array has {request.elements:,} elements"
    room = Room.of(Shape.of(request))
    if (documents := min(room.forward, room.backward)) < FEWEST:
        return (
            f"its packed layout needs scratch memory for each document of a call: {SCRATCH >> 30} GiB are enough for "
            f"{documents} documents of one row and KV head, and it needs {FEWEST}"
        )
    return missing()


def missing() -> str | None:
    """A clause that names the first function missing in this version of jax; None if all exist."""
    try:
        module = import_module(MODULE)
    except ImportError:
        return f"this jax has no {MODULE}"
    needed = ("dot_product_attention", "MaskType", "AttentionLayout", "_dot_product_attention_bwd_rule")
    absent = [name for name in needed if not hasattr(module, name)]
    return f"{MODULE} of this jax has no {absent[0]}" if absent else None


class Documents(NamedTuple):
    """Documents of each row: runs of consecutive tokens with one segment id. Padding is a document too."""

    index: Int[Array, "batch seq"]
    """Index of each token's document in its row."""
    start: Int[Array, "batch seq"]
    """Position of the first token of each token's document."""

    @classmethod
    def of(cls, segments: Int[Array, "batch seq"]) -> Documents:
        first = jnp.pad(segments[:, 1:] != segments[:, :-1], [(0, 0), (1, 0)], constant_values=True)
        positions = lax.broadcasted_iota(jnp.int32, segments.shape, 1)
        start = lax.cummax(jnp.where(first, positions, 0), axis=1)
        return cls(jnp.cumsum(first, 1, dtype=jnp.int32) - 1, start)

    def part(self, step: Any, room: int) -> Part:
        """The documents of call `step`, at most `room` of each row."""
        batch, length = self.index.shape
        index = self.index - step * room
        inside = (index >= 0) & (index < room)
        row = jnp.arange(batch)[:, None]
        target = row, jnp.where(inside, index, room)
        lengths = jnp.zeros((batch, room + 1), jnp.int32).at[target].add(1)[:, :room]
        starts = jnp.full((batch, room + 1), -1, jnp.int32).at[target].max(self.start).at[:, room].set(-1)
        present = lengths > 0
        count = present.sum(1, dtype=jnp.int32)
        first = jnp.cumsum(count) - count
        positions = lax.broadcasted_iota(jnp.int32, (batch, length), 1) - self.start
        return Part(
            jnp.where(present, lengths, -1), starts, inside, jnp.where(inside, first[:, None] + index, 0), positions
        )


class Part(NamedTuple):
    """The documents of one call, in the form of the arguments of jax's function."""

    lengths: Int[Array, "batch room"]
    """Length of each document; -1 after the last one of a row."""
    offsets: Int[Array, "batch documents+1"]
    """Position of the first token of each document; -1 after the last one of a row."""
    inside: Bool[Array, "batch seq"]
    """The tokens that the call attends."""
    document: Int[Array, "batch seq"]
    """Index of each token's document among the documents of all rows; 0 outside `inside`."""
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

    The tokens of a document are consecutive: a segment id that appears again later is another document. `room` is by
    default `Room.of` the shape, and at least 2 documents: with a single one cuDNN treats the row as not packed.
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
    module, options = _module_and_options(static)
    padded_v = widened(v, q)

    def call(part: Part, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        ranges = {"q_seqlen": part.lengths, "kv_seqlen": part.lengths}
        ranges |= {"q_offsets": part.offsets, "kv_offsets": part.offsets}
        out, statistics = module.dot_product_attention(q, k, padded_v, **ranges, **options, return_residual=True)
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
    """Arrays of the backward pass, all with the head width of the queries."""

    q: Float[Array, "batch seq heads width"]
    k: Float[Array, "batch seq kv_heads width"]
    v: Float[Array, "batch seq kv_heads width"]
    segments: Int[Array, "batch seq"]
    out: Float[Array, "batch seq heads width"]
    lse: Float[Array, "batch seq heads"]
    d_out: Float[Array, "batch seq heads width"]


def _by_parts(static: Static, shape: Shape, arrays: Arguments) -> tuple[jax.Array, ...]:
    """Gradients of all rows and heads, one part after the other, so that scratch memory is that of one part."""
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
    module, options = _module_and_options(static)
    layout, empty = module.AttentionLayout.BTNH.value, jnp.zeros(0, q.dtype)
    backward = module._dot_product_attention_bwd_rule
    modified = "score_mod" in signature(backward).parameters  # jax 0.12: a function of the scores, and its arguments

    def call(part: Part, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        shape = (q.shape[0] * room, q.shape[2], q.shape[1])
        target = jnp.where(part.inside, part.document, shape[0])  # an index out of range is dropped
        statistics = vary_over(jnp.zeros(shape, jnp.float32), varying_axes(q))
        statistics = statistics.at[target, :, part.position].set(lse, mode="drop")
        ranges = part.lengths, part.lengths, part.offsets, part.offsets
        residuals = (q, k, v, empty, *ranges, empty, empty, *(((),) if modified else ()), statistics, out)
        gradients = backward(
            options["scale"], 42, 0.0, (False, False), options["mask_type"], layout, options["sliding_window_length"],
            *((None, None) if modified else (True,)), False, residuals, d_out,
        )  # fmt: skip
        return _merged(part, carry, gradients[:3])

    start = vary_over(jax.tree.map(jnp.zeros_like, (q, k, v)), varying_axes(q))
    return _calls(documents, room, call, start)


_attend.defvjp(_forward, _backward)


def widened(x: jax.Array, like: jax.Array) -> jax.Array:
    """`x` with its last dimension zero-padded to that of `like`."""
    missing = like.shape[-1] - x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def narrowed(x: jax.Array, like: jax.Array) -> jax.Array:
    """`x` with its last dimension cut to that of `like`."""
    return x[..., : like.shape[-1]]


def _module_and_options(static: Static) -> tuple[Any, dict[str, Any]]:
    """jax's module, and the options that all calls share."""
    module: Any = import_module(MODULE)
    options = {"scale": static.scale, "mask_type": module.MaskType.PADDING_CAUSAL}
    return module, options | {"sliding_window_length": static.window}


def _calls[Carry](documents: Documents, room: int, call: Callable[[Part, Carry], Carry], carry: Carry) -> Carry:
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
