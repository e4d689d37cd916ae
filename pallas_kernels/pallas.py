"""Pallas and its two GPU backends, imported when a kernel first uses them: they take a quarter of the time of all
imports, and a CPU needs none of them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

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

__all__ = ["mosaic_gpu", "pl", "triton"]
