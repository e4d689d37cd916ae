"""Pallas and its two GPU backends, imported when a kernel first uses them: they take a quarter of the time of all
imports, and a CPU needs none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu, triton
else:

    class _OnDemand(ModuleType):
        """A module that is imported when one of its attributes is first read."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name__), name)

    pl = _OnDemand("jax.experimental.pallas")
    mosaic_gpu = _OnDemand("jax.experimental.pallas.mosaic_gpu")
    triton = _OnDemand("jax.experimental.pallas.triton")

__all__ = ["call_triton", "mosaic_gpu", "pl", "triton"]


def call_triton(
    kernel: Callable[..., None], name: str, grid: tuple[int, ...], tile: Any,
    results: tuple[tuple[tuple[int, ...], Any], ...], arguments: tuple[Any, ...], interpret: bool,
) -> Any:  # fmt: skip
    """Run `kernel` on whole arrays, which it reads and writes by itself, with the warps and stages of `tile`.

    Results are (shape, dtype)s; inside a checked `shard_map` they vary over the axes of the first argument.
    """
    varying = jax.typeof(arguments[0]).manual_axis_type
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=tuple(jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying) for shape, dtype in results),
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name=name,
    )(*arguments)
