"""Calling a kernel through Pallas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from pallas_kernels.attention.settings import Settings
from pallas_kernels.attention.triton.tiles import Tile, Tiles, tiles
from pallas_kernels.device import target
from pallas_kernels.pallas import pl
from pallas_kernels.pallas import triton as plgpu


def default_tiles(settings: Settings, q: jax.Array, v: jax.Array) -> Tiles:
    """The tiles of the table for these heads and the device that is traced for."""
    capability = None if settings.interpret else target().compute_capability
    return tiles(q.shape[-1], v.shape[-1], capability, settings.mask.kind)


def call(
    kernel: Callable[..., None],
    name: str,
    grid: tuple[int, int, int],
    tile: Tile,
    results: tuple[tuple[tuple[int, ...], Any], ...],
    arguments: tuple[Any, ...],
    interpret: bool,
) -> Any:
    """Run `kernel` on the whole arrays, which it reads and writes by itself; `results` are (shape, dtype)s.

    Inside a checked `shard_map` the results vary over the axes of the first argument.
    """
    varying = jax.typeof(arguments[0]).manual_axis_type
    out_shape = tuple(jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying) for shape, dtype in results)
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=out_shape,
        compiler_params=plgpu.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name=name,
    )(*arguments)
