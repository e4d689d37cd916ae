"""Attention kernels for Hopper GPUs, in Pallas Mosaic GPU: one warpgroup loads by TMA, the others compute by wgmma.

`forward` (with `overlapped`), `backward_by_queries` and `backward_by_keys` are the kernels, the last with `query_parts`
where all gradients come from one. They share `kernel`, `schedule`, `loading`, `memory`, `registers`, `matmuls` and
`scores`; `bounds` is what the mask means for their tiles, and `tiles` how large those are.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels.attention.derivative import ForwardBackward, Gradients, OutputAndLse
from pallas_kernels.attention.mosaic import matmuls
from pallas_kernels.attention.mosaic.backward_by_keys import key_gradients
from pallas_kernels.attention.mosaic.backward_by_queries import query_gradients
from pallas_kernels.attention.mosaic.bounds import Limits, key_tokens, query_limits, visits
from pallas_kernels.attention.mosaic.forward import forward_kernel
from pallas_kernels.attention.mosaic.kernel import Arrays, Options
from pallas_kernels.attention.mosaic.schedule import TILE
from pallas_kernels.attention.mosaic.scores import Scores
from pallas_kernels.attention.mosaic.tiles import TABLE, Tiles
from pallas_kernels.attention.mosaic.tiles import tiles as table_tiles
from pallas_kernels.attention.request import Request
from pallas_kernels.attention.settings import MaskInputs, Settings
from pallas_kernels.attention.work import FORWARD, multiplies
from pallas_kernels.choice import HOPPER, refused_by_gpu
from pallas_kernels.device import multiprocessors
from pallas_kernels.masks import Mask
from pallas_kernels.pallas import mosaic_gpu as plgpu
from pallas_kernels.toolchain import miscompiles_causal
from pallas_kernels.varying import vary_over, varying_axes

__all__ = ["DETERMINISTIC_KERNELS", "KERNELS", "backward", "forward", "refusal"]


def refusal(request: Request) -> str | None:
    """None if the kernels support the request, otherwise the reason."""
    if (reason := refused_by_gpu(request, only=(HOPPER,))) is not None:
        return reason
    if (request.width, request.value_width) not in TABLE:
        listed = ", ".join(f"{wide}" if wide == value else f"{wide}/{value}" for wide, value in TABLE)
        return f"its heads have a width of {listed}, not {request.width}/{request.value_width}"
    if request.scale is not None and request.scale <= 0.0:
        return f"it needs a scale of the scores above 0, not {request.scale:g}"
    cut = request.mask.kind != "full"  # a window and documents cut blocks by the same comparisons as causality
    return miscompiles_causal() if cut and request.platform == "gpu" else None


def forward(
    settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs,
    *, tiles: Tiles | None = None,
) -> OutputAndLse:  # fmt: skip
    """Output and float32 log-sum-exp over these keys, like `attention_forward` of the reference.

    `tiles` are those of the table where none are given.
    """
    options, cut = _options(settings), (tiles or _tiles(settings, q, v)).forward
    queries, keys = query_limits(settings.mask, tokens, TILE), key_tokens(settings.mask, tokens, cut.keys)
    visited = visits(options.limits, queries, keys, TILE, cut.keys, of_keys=False, neighbours=_neighbours(settings))
    arrays, exact = Arrays(q, k, v, None, None, queries, keys, visited), settings.result_dtype(q) == jnp.float32
    with multiplies(settings.mask, *FORWARD):
        out, lse = forward_kernel(arrays, cut, options, exact=exact)
    results = out[:, : q.shape[1]], jnp.swapaxes(lse, 1, 2)[:, : q.shape[1]]
    return vary_over(results, varying_axes(q))  # a launch forgets what its results vary over


def backward(
    settings: Settings, q: jax.Array, k: jax.Array, v: jax.Array, tokens: MaskInputs,
    lse: jax.Array, delta: jax.Array, d_out: jax.Array, *, deterministic: bool = False, tiles: Tiles | None = None,
) -> Gradients:  # fmt: skip
    """The contribution of these keys to the gradients of q, k and v, like `attention_backward` of the reference.

    In one kernel where there are tiles for it, which adds up the gradient of q in an order of chance; with
    `deterministic` always in kernels of their own for queries and keys, whose bits are the same in every run.
    """
    options, tiles, length = _options(settings), tiles or _tiles(settings, q, v), k.shape[1]
    mask, statistics, d_out = settings.mask, options.scores.statistics(lse, delta, TILE), d_out.astype(q.dtype)
    queries, keys = query_limits(mask, tokens, TILE), key_tokens(mask, tokens, TILE)

    def arrays(keys: jax.Array, *blocks: int, of_keys: bool) -> Arrays:
        visited = visits(options.limits, queries, keys, *blocks, of_keys=of_keys, neighbours=_neighbours(settings))
        return Arrays(q, k, v, d_out, statistics, queries, keys, visited)

    def by_keys(wanted: str, cut) -> dict[str, jax.Array]:
        operands = arrays(keys, cut.queries, TILE, of_keys=True)
        slopes = ("slopes",) if wanted != "v" else ()
        with multiplies(mask, "scores", *slopes, *(f"d{letter}" for letter in wanted)):
            return key_gradients(operands, cut, options, wanted)

    if tiles.fused is not None and not deterministic:
        d = by_keys("qkv", tiles.fused)
    else:
        block = tiles.query_gradients.keys
        operands = arrays(key_tokens(mask, tokens, block), TILE, block, of_keys=False)
        with multiplies(mask, "scores", "slopes", "dq"):
            d = {"q": query_gradients(operands, tiles.query_gradients, options)}
        for wanted, cut in tiles.key_gradients:
            d |= by_keys(wanted, cut)
    dtype = settings.result_dtype(q)
    dq, dk, dv = (d[name][:, :rows].astype(dtype) for name, rows in (("q", q.shape[1]), ("k", length), ("v", length)))
    return vary_over((dq, dk, dv), varying_axes(q))


KERNELS = ForwardBackward(forward, backward)
DETERMINISTIC_KERNELS = ForwardBackward(forward, partial(backward, deterministic=True))


def _options(settings: Settings) -> Options:
    if settings.scale <= 0.0:
        raise ValueError(f"attention by 'mosaic' needs a scale above 0, got {settings.scale}")
    if settings.interpret:  # one program, for the simulator runs one after the other without saying so to its races
        launch = matmuls.Simulated, 1, plgpu.InterpretGPUParams(detect_races=True)
    else:  # one for each multiprocessor: with fewer programs some idle, with more some wait for their turn
        launch = matmuls.OnDevice, multiprocessors(), None
    return Options(Limits.of(settings.mask), Scores(settings.scale, settings.softcap), *launch)


def _tiles(settings: Settings, q: jax.Array, v: jax.Array) -> Tiles:
    return table_tiles(q.shape[3], v.shape[3], settings.softcap)


def _neighbours(settings: Settings) -> Mask | None:
    """The mask, where what tiles visit are intervals."""
    return settings.mask if settings.neighbours else None
