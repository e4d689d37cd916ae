"""The two kernels of the head's loss for NVIDIA GPUs since Ampere, through Pallas' Triton lowering.

A program multiplies a tile of tokens by a tile of the vocabulary and uses the logits where they are, in registers:

* `statistics`: the online softmax (Milakov & Gimelshein, arXiv:1805.02867) over the tiles of a part of the vocabulary,
  and the label's logit. It writes three numbers per token and part, and with `Head.keep` also the exponentials that it
  sums, for which the second kernel then does not run (`kept.logit_gradients`).
* `logit_gradients`: recomputes the tile's logits and writes their gradient, in the inputs' dtype.

This cut is that of Cut Cross-Entropy (arXiv:2411.09009, section 4). Its backward adds to the gradients of x and of
the table tile by tile, with atomic sums, which pays where almost all tiles are skipped as too small to matter; here
nothing is skipped, so that gradients are exact, and the two matmuls are left to XLA, chunk by chunk.

Programs that run together form a square of tokens and parts, so that what one loads from memory others find in the L2
cache.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.linear_cross_entropy.head import Head, Statistics, Tile, merge
from pallas_kernels.linear_cross_entropy.saved_logits import SavedLogits, Token, gradients, rounded
from pallas_kernels.pallas import pl
from pallas_kernels.pallas import triton as plgpu
from pallas_kernels.ranges import Range, both, load
from pallas_kernels.varying import vary_alike

TILES = {
    (90, False): Tile(128, 256, 64, warps=8, stages=3),
    (90, True): Tile(128, 128, 64, warps=8, stages=4),
    (80, False): Tile(128, 128, 64, warps=8, stages=4),
    (80, True): Tile(128, 128, 64, warps=8, stages=4),
}
"""Tiles that compile without spills, by minimum compute capability and by whether something else needs registers (the
derivative of a soft-cap, or the addresses of saved logits)."""

WIDEST = max(tile.vocab for tile in TILES.values())

PARTS = 8
"""Parts of the vocabulary whose statistics are made side by side."""
SAVED_TOKENS = 32
"""Tokens of a program that computes gradients from saved logits, for a group of columns."""
GROUP = 16
"""Token tiles that run side by side: with `PARTS`, about one program for each multiprocessor."""


def _tile(head: Head) -> Tile:
    """The requested tile, or that for the device that is traced for; in the interpreter, on any device, Hopper's."""
    if head.tile is not None:
        return head.tile
    capability = max(TILES)[0] if head.interpret else plgpu.get_gpu_info().compute_capability
    full = head.softcap is not None or head.keep
    return next(tile for (least, of_full), tile in TILES.items() if capability >= least and of_full == full)


def statistics(
    head: Head,
    x: Float[Array, "tokens embed"],
    table: Float[Array, "..."],
    labels: Int[Array, " tokens"],
    columns: Int[Array, " one"],
) -> tuple[Statistics, SavedLogits | None]:
    """Like `pallas_kernels.linear_cross_entropy.reference.statistics`."""
    tile, tokens, vocab = _tile(head), x.shape[0], head.local_vocab(table)
    parts, rows = min(PARTS, pl.cdiv(vocab, tile.vocab)), pl.cdiv(tokens, tile.tokens)
    x, table, labels, columns = vary_alike((x, table, labels, columns))
    shape = lambda *dims, dtype=jnp.float32: jax.ShapeDtypeStruct(dims, dtype, manual_axis_type=_manual(x))
    shapes = (shape(parts, tokens),) * 3
    if head.keep:
        shapes += shape(tokens, vocab, dtype=x.dtype), shape(pl.cdiv(vocab, tile.vocab), tokens)
    results = pl.pallas_call(
        partial(_statistics_kernel, head, tile, parts),
        grid=(rows * parts,),
        out_shape=shapes,
        compiler_params=plgpu.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=head.interpret,
        name="linear_cross_entropy_statistics",
    )(x, table, labels, columns)
    return merge(Statistics(*results[:3])), SavedLogits(results[3], results[4], tile.vocab) if head.keep else None


def logit_gradients(
    head: Head,
    x: Float[Array, "tokens embed"],
    table: Float[Array, "..."],
    labels: Int[Array, " tokens"],
    columns: Int[Array, " one"],
    token: Token,
    chunk: jax.Array | int,
    stride: int,
    width: int,
) -> Float[Array, "tokens width"]:
    """Like `pallas_kernels.linear_cross_entropy.reference.logit_gradients`."""
    tile, tokens = _tile(head), x.shape[0]
    chunk = jnp.reshape(jnp.asarray(chunk, jnp.int32), (1,))
    x, table, labels, columns, token, chunk = vary_alike((x, table, labels, columns, token, chunk))
    return pl.pallas_call(
        partial(_gradients_kernel, head, tile, stride),
        grid=(pl.cdiv(tokens, tile.tokens) * pl.cdiv(width, tile.vocab),),
        out_shape=jax.ShapeDtypeStruct((tokens, width), x.dtype, manual_axis_type=_manual(x)),
        compiler_params=plgpu.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=head.interpret,
        name="linear_cross_entropy_gradients",
    )(x, table, labels, columns, token.lse, token.of_lse, token.of_label, chunk)


def gradients_from_saved(
    head: Head, saved: SavedLogits, labels: Int[Array, " tokens"], token: Token
) -> Float[Array, "tokens columns"]:
    """As `pallas_kernels.linear_cross_entropy.saved_logits.gradients_from_saved`, written over the saved logits."""
    (tokens, columns), groups = saved.values.shape, saved.bases.shape[0]
    values, bases, labels, token = vary_alike((saved.values, saved.bases, labels, token))
    return pl.pallas_call(
        partial(_saved_kernel, head, saved.width),
        grid=(groups, pl.cdiv(tokens, SAVED_TOKENS)),
        out_shape=jax.ShapeDtypeStruct((tokens, columns), values.dtype, manual_axis_type=_manual(values)),
        input_output_aliases={0: 0},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=head.interpret,
        name="linear_cross_entropy_saved_gradients",
    )(values, bases, labels, *token)


def _manual(x: jax.Array) -> Any:
    return jax.typeof(x).manual_axis_type


def _position(program: jax.Array, rows: int, parts: int) -> tuple[jax.Array, jax.Array]:
    """(token tile, part) of a program: parts change slower than the token tiles of a group."""
    group = program // (GROUP * parts)
    height = jnp.minimum(rows - group * GROUP, GROUP)
    inside = program - group * (GROUP * parts)
    return group * GROUP + inside % height, inside // height


def _statistics_kernel(
    head: Head, tile: Tile, parts: int, x_ref, table_ref, labels_ref, columns_ref, peak_ref, total_ref, label_ref,
    *saved_refs,
):  # fmt: skip
    tokens, vocab = x_ref.shape[0], head.local_vocab(table_ref)
    tiles = pl.cdiv(vocab, tile.vocab)
    row, part = _position(pl.program_id(0), pl.cdiv(tokens, tile.tokens), parts)
    rows = Range(row * tile.tokens, tile.tokens, tokens, tokens % tile.tokens == 0)
    labels = rows.load(labels_ref, other=-1)
    columns = columns_ref[0]

    def of_tile(index: jax.Array, carry: tuple) -> tuple:
        peak, total, label = carry
        here = Range(index * tile.vocab, tile.vocab, vocab, vocab % tile.vocab == 0)
        logits = head.cap(_logits(head, tile.embed, x_ref, table_ref, rows, here))
        label = label + jnp.sum(jnp.where(labels[:, None] == here.indices[None, :], logits, 0.0), axis=1)
        logits = jnp.where((here.indices < columns)[None, :], logits, -jnp.inf)
        new = jnp.maximum(peak, jnp.max(logits, axis=1))
        base = jnp.where(new == -jnp.inf, 0.0, new)
        values = jnp.exp(logits - base[:, None])
        total = total * jnp.exp(peak - base) + jnp.sum(values, axis=1)
        if head.keep:
            values_ref, bases_ref = saved_refs
            values, base = rounded(values, base, values_ref.dtype)
            plgpu.store(values_ref.at[rows.slice, here.slice], values, mask=both(rows, here))
            plgpu.store(bases_ref.at[index, rows.slice], base, mask=rows.inside)
        return new, total, label

    zeros = jnp.zeros((tile.tokens,), jnp.float32)
    begin, end = part * tiles // parts, (part + 1) * tiles // parts
    peak, total, label = lax.fori_loop(begin, end, of_tile, (zeros - jnp.inf, zeros, zeros))
    for ref, value in ((peak_ref, peak), (total_ref, total), (label_ref, label)):
        plgpu.store(ref.at[part, rows.slice], value, mask=rows.inside)


def _gradients_kernel(
    head: Head, tile: Tile, stride: int, x_ref, table_ref, labels_ref, columns_ref, lse_ref, of_lse_ref, of_label_ref,
    chunk_ref, out_ref,
):  # fmt: skip
    tokens, width = out_ref.shape
    row, part = _position(pl.program_id(0), pl.cdiv(tokens, tile.tokens), pl.cdiv(width, tile.vocab))
    rows = Range(row * tile.tokens, tile.tokens, tokens, tokens % tile.tokens == 0)
    there = Range(part * tile.vocab, tile.vocab, width, width % tile.vocab == 0)
    first = chunk_ref[0] * stride  # a known factor lets the compiler load several neighbours at once
    here = Range(first + there.start, tile.vocab, first + width, there.full)
    logits = head.cap(_logits(head, tile.embed, x_ref, table_ref, rows, here))
    labels = rows.load(labels_ref, other=-1)
    lse, of_lse, of_label = (rows.load(ref, other=0.0)[:, None] for ref in (lse_ref, of_lse_ref, of_label_ref))
    hit = labels[:, None] == here.indices[None, :]
    gradients = of_lse * jnp.exp(logits - lse) - jnp.where(hit, of_label, 0.0)
    if head.softcap is not None:
        gradients = gradients * (1.0 - jnp.square(logits / head.softcap))
    gradients = jnp.where((here.indices < columns_ref[0])[None, :], gradients, 0.0)
    plgpu.store(out_ref.at[rows.slice, there.slice], gradients.astype(out_ref.dtype), mask=both(rows, there))


def _saved_kernel(
    head: Head, width: int, values_ref, bases_ref, labels_ref, lse_ref, of_lse_ref, of_label_ref, label_ref, out_ref
):  # fmt: skip
    tokens, columns = out_ref.shape
    group = pl.program_id(0)
    rows = Range(pl.program_id(1) * SAVED_TOKENS, SAVED_TOKENS, tokens, tokens % SAVED_TOKENS == 0)
    here = Range(group * width, width, columns, columns % width == 0)
    values = load(values_ref, rows, here)
    bases = plgpu.load(bases_ref.at[group, rows.slice], mask=rows.inside, other=None if rows.full else 0.0)[:, None]
    hit = rows.load(labels_ref, other=-1)[:, None] == here.indices[None, :]
    refs = (lse_ref, of_lse_ref, of_label_ref, label_ref)
    token = Token(*(rows.load(ref, other=0.0)[:, None] for ref in refs))
    gradient = gradients(head, values, bases, hit, token).astype(out_ref.dtype)
    plgpu.store(out_ref.at[rows.slice, here.slice], gradient, mask=both(rows, here))


def _logits(head: Head, block: int, x_ref: Any, table_ref: Any, rows: Range, columns: Range) -> jax.Array:
    """A tile of logits before the cap, float32; zeros past the ends. `block` is of the contraction, at a time."""
    embed = x_ref.shape[1]

    def step(index: jax.Array, logits: jax.Array) -> jax.Array:
        depth = Range(index * block, block, embed, embed % block == 0)
        x = load(x_ref, rows, depth)
        if head.vocab_first:
            return logits + plgpu.dot(x, load(table_ref, columns, depth).T)
        return logits + plgpu.dot(x, load(table_ref, depth, columns))

    return lax.fori_loop(0, pl.cdiv(embed, block), step, jnp.zeros((rows.size, columns.size), jnp.float32))
