"""The backward as two kernels, one for dq and one for dk and dv, each of which recomputes the probabilities.

A kernel of its own for each side needs seven matmuls for a block of pairs where a fused one needs five, and in return
adds nothing up across thread blocks: no atomics, and the same bits in every run. The kernel for dk and dv adds up over
the query heads of a KV head.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.derivative import Gradients
from pallas_kernels.attention.settings import MaskInputs, Settings
from pallas_kernels.attention.triton.body import LOG2E, Rows, pairs, products, scores, softcap_slope
from pallas_kernels.attention.triton.lists import Visited, Visits, per_key_block, per_query_block
from pallas_kernels.attention.triton.tiles import Tile, Tiles, pieces, tiles_of
from pallas_kernels.attention.work import multiplies
from pallas_kernels.pallas import call_triton, pl
from pallas_kernels.pallas import triton as plgpu


def backward(
    settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs,
    lse: jax.Array, delta: jax.Array, d_out: jax.Array, tiles: Tiles | None = None,
) -> Gradients:  # fmt: skip
    """Gradients of q, k and v in the dtype that `settings.results` names; see `ForwardBackward`."""
    tiles = tiles or tiles_of(settings, q, v)
    d_out = d_out.astype(q.dtype)
    # An infinite log-sum-exp makes the probabilities of a query that sees nothing exp(-inf) = 0.
    statistics = (jnp.where(lse == -jnp.inf, jnp.inf, lse * LOG2E).swapaxes(1, 2), delta.swapaxes(1, 2))
    arguments = (q, k, v, d_out, *statistics, tokens)
    (batch, queries, heads, width), (_, keys, kv_heads, _) = q.shape, v.shape

    tile = tiles.dq
    visits = per_query_block(settings.mask, tokens, tile.queries, tile.keys, neighbours=settings.neighbours)
    with multiplies(settings.mask, "scores", "slopes", "dq"):
        (dq,) = call_triton(
            partial(_dq_kernel, settings, tile),
            f"attention_dq_{width}",
            (pl.cdiv(queries, tile.queries), heads, batch),
            tile,
            ((q.shape, settings.result_dtype(q)),),
            (*arguments, visits),
            settings.interpret,
        )
    tile = tiles.dkv
    visits = per_key_block(settings.mask, tokens, tile.queries, tile.keys, neighbours=settings.neighbours)
    with multiplies(settings.mask, "scores", "slopes", "dv", "dk"):
        dk, dv = call_triton(
            partial(_dkv_kernel, settings, tile),
            f"attention_dkv_{width}",
            (pl.cdiv(keys, tile.keys), kv_heads, batch),
            tile,
            ((k.shape, settings.result_dtype(k)), (v.shape, settings.result_dtype(v))),
            (*arguments, visits),
            settings.interpret,
        )
    return dq, dk, dv


def _dq_kernel(
    settings: Settings, tile: Tile, q: Any, k: Any, v: Any, d_out: Any, lse: Any, delta: Any, tokens: MaskInputs,
    visits: Visits, dq: Any,
) -> None:  # fmt: skip
    turn, head, row = (pl.program_id(axis) for axis in range(3))
    block = pl.num_programs(0) - 1 - turn if settings.mask.causal else turn  # the longest first
    kv_head = lax.div(head, q.shape[2] // k.shape[2])
    rows = Rows.of(block, tile.queries, q.shape[1])
    q_tile, d_out_tile = rows.of_heads(q, row, head), rows.of_heads(d_out, row, head)
    lse_tile = rows.of_statistics(lse, row, head, jnp.inf)[:, None]
    delta_tile = rows.of_statistics(delta, row, head, 0.0)[:, None]
    visited = Visited.by(visits, row, block)

    def visit(index: jax.Array, dq: tuple, cut: bool) -> tuple:
        keys = Rows.of(visited.other(index, cut), tile.keys, k.shape[1])
        k_tile = keys.of_heads(k, row, kv_head)
        score = scores(settings, q_tile, k_tile)
        p = jnp.exp2(score - lse_tile)
        if cut:
            p = jnp.where(pairs(settings, tokens, row, rows, keys, keys_first=False), p, 0.0)
        ds = p * (products(d_out_tile, keys.of_heads(v, row, kv_head)) - delta_tile)
        if settings.softcap is not None:
            ds = ds * softcap_slope(settings, score)
        ds = ds.astype(k.dtype)
        return tuple(old + plgpu.dot(ds, piece) for old, piece in zip(dq, k_tile, strict=True))

    zeros = tuple(jnp.zeros((tile.queries, size), jnp.float32) for _, size in pieces(q.shape[-1]))
    sums = lax.fori_loop(0, visited.full, partial(visit, cut=False), zeros)
    sums = lax.fori_loop(visited.full, visited.visited, partial(visit, cut=True), sums)
    rows.store(dq, row, head, tuple(piece * settings.scale for piece in sums))


def _dkv_kernel(
    settings: Settings, tile: Tile, q: Any, k: Any, v: Any, d_out: Any, lse: Any, delta: Any, tokens: MaskInputs,
    visits: Visits, dk: Any, dv: Any,
) -> None:  # fmt: skip
    block, kv_head, row = (pl.program_id(axis) for axis in range(3))  # early keys are seen by most queries
    group = q.shape[2] // k.shape[2]
    rows = Rows.of(block, tile.keys, k.shape[1])
    k_tile, v_tile = rows.of_heads(k, row, kv_head), rows.of_heads(v, row, kv_head)
    visited = Visited.by(visits, row, block)

    def visit(step: jax.Array, gradients: tuple, first: jax.Array | int, count: jax.Array, cut: bool) -> tuple:
        """Step through `count` blocks of the list from `first` on, for each query head of the KV head."""
        dk, dv = gradients
        of_group = lax.div(step, count) if group > 1 else 0
        head, index = kv_head * group + of_group, first + step - of_group * count
        queries = Rows.of(visited.other(index, cut), tile.queries, q.shape[1])
        q_tile, d_out_tile = queries.of_heads(q, row, head), queries.of_heads(d_out, row, head)
        score = scores(settings, k_tile, q_tile)
        p = jnp.exp2(score - queries.of_statistics(lse, row, head, jnp.inf)[None, :])
        if cut:
            p = jnp.where(pairs(settings, tokens, row, queries, rows, keys_first=True), p, 0.0)
        weights = p.astype(q.dtype)
        dv = tuple(old + plgpu.dot(weights, piece) for old, piece in zip(dv, d_out_tile, strict=True))
        ds = p * (products(v_tile, d_out_tile) - queries.of_statistics(delta, row, head, 0.0)[None, :])
        if settings.softcap is not None:
            ds = ds * softcap_slope(settings, score)
        ds = ds.astype(q.dtype)
        return tuple(old + plgpu.dot(ds, piece) for old, piece in zip(dk, q_tile, strict=True)), dv

    zeros = tuple(
        tuple(jnp.zeros((tile.keys, size), jnp.float32) for _, size in pieces(ref.shape[-1])) for ref in (dk, dv)
    )
    full, cut = visited.full, visited.visited - visited.full
    sums = lax.fori_loop(0, full * group, partial(visit, first=0, count=full, cut=False), zeros)
    dk_sum, dv_sum = lax.fori_loop(0, cut * group, partial(visit, first=full, count=cut, cut=True), sums)
    rows.store(dk, row, kv_head, tuple(piece * settings.scale for piece in dk_sum))
    rows.store(dv, row, kv_head, dv_sum)
