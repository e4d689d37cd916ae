"""The forward kernel: a thread block has the queries of one tile and head, and visits the tiles of keys in turn."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.derivative import OutputAndLse
from pallas_kernels.attention.settings import MaskInputs, Settings
from pallas_kernels.attention.triton.body import LOG2E, Rows, pairs, scores
from pallas_kernels.attention.triton.lists import Visited, Visits, per_query_block
from pallas_kernels.attention.triton.tiles import Tile, pieces, tiles_of
from pallas_kernels.attention.work import FORWARD, multiplies
from pallas_kernels.pallas import call_triton, pl
from pallas_kernels.pallas import triton as plgpu


def forward(
    settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs,
    tile: Tile | None = None,
) -> OutputAndLse:  # fmt: skip
    """Output in the dtype that `settings.results` names, and log-sum-exp; see `ForwardBackward`."""
    tile = tile or tiles_of(settings, q, v).forward
    (batch, queries, heads, _), value_width = q.shape, v.shape[-1]
    visits = per_query_block(settings.mask, tokens, tile.queries, tile.keys, neighbours=settings.neighbours)
    with multiplies(settings.mask, *FORWARD):
        out, lse = call_triton(
            partial(_kernel, settings, tile),
            f"attention_forward_{q.shape[-1]}",
            (pl.cdiv(queries, tile.queries), heads, batch),
            tile,
            (((*q.shape[:-1], value_width), settings.result_dtype(q)), ((batch, heads, queries), jnp.float32)),
            (q, k, v, tokens, visits),
            settings.interpret,
        )
    return out, lse.swapaxes(1, 2)


def _kernel(
    settings: Settings, tile: Tile, q: Any, k: Any, v: Any, tokens: MaskInputs, visits: Visits, out: Any, lse: Any
) -> None:
    # Later queries see more keys where the mask is causal: they go first, so that the last to end are short ones.
    turn, head, row = (pl.program_id(axis) for axis in range(3))
    block = pl.num_programs(0) - 1 - turn if settings.mask.causal else turn
    kv_head = lax.div(head, q.shape[2] // k.shape[2])
    rows = Rows.of(block, tile.queries, q.shape[1])
    q_tile, visited = rows.of_heads(q, row, head), Visited.by(visits, row, block)

    def visit(index: jax.Array, state: tuple, cut: bool) -> tuple:
        peak, total, output = state
        keys = Rows.of(visited.other(index, cut), tile.keys, k.shape[1])
        score = scores(settings, q_tile, keys.of_heads(k, row, kv_head))
        if cut:
            visible = pairs(settings, tokens, row, rows, keys, keys_first=False)
            score = jnp.where(visible, score, -jnp.inf)
        new_peak = jnp.maximum(peak, score.max(-1))
        base = jnp.where(new_peak == -jnp.inf, 0.0, new_peak) if cut else new_peak  # -inf - -inf would be NaN
        p, decay = jnp.exp2(score - base[:, None]), jnp.exp2(peak - base)
        weights = p.astype(v.dtype)
        v_tile = keys.of_heads(v, row, kv_head)
        output = tuple(
            old * decay[:, None] + plgpu.dot(weights, piece) for old, piece in zip(output, v_tile, strict=True)
        )
        return new_peak, total * decay + p.sum(-1), output

    zeros = tuple(jnp.zeros((tile.queries, size), jnp.float32) for _, size in pieces(v.shape[-1]))
    state = (jnp.full((tile.queries,), -jnp.inf, jnp.float32), jnp.zeros((tile.queries,), jnp.float32), zeros)
    state = lax.fori_loop(0, visited.full, partial(visit, cut=False), state)
    peak, total, output = lax.fori_loop(visited.full, visited.visited, partial(visit, cut=True), state)

    share = 1.0 / jnp.where(total == 0.0, 1.0, total)
    rows.store(out, row, head, tuple(piece * share[:, None] for piece in output))
    result = (peak + jnp.log2(total)) * (1.0 / LOG2E)
    plgpu.store(lse.at[row, head, pl.ds(rows.start, rows.size)], result, mask=rows.inside)
