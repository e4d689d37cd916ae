"""Power of GPUs: what the datasheet allows, and how much slower a GPU with a lower cap multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.sources import assumed, cited

POWER_W: Annotated[
    Mapping[str, float], cited("NVIDIA's datasheets; GH200 and GB200: of the GPU alone")
] = MappingProxyType({
    "v100-32": 300.0, "a100-40": 400.0, "a100-80": 400.0, "a800": 400.0, "h100": 700.0, "h800": 700.0,
    "h200": 700.0, "h20": 400.0, "gh200": 700.0, "b200": 1000.0, "gb200": 1200.0, "a10g": 300.0, "l4": 72.0,
    "l40s": 350.0, "rtx4090": 450.0, "rtx5090": 575.0,
})  # fmt: skip
"""Largest board power in the default mode, in watts."""

STATIC_SHARE: Annotated[float, assumed("no curve of a GPU is cited")] = 0.2
"""Share of the power that does not follow the clock: memory, links and leakage."""
EXPONENT: Annotated[
    float, assumed("between 1, where the voltage stays, and 3, where it falls with the clock: f V^2")
] = 2.4
"""Power of the clock that the rest follows."""


def power_of(gpu: GPU) -> float | None:
    """Watts of a GPU without a cap; None where its datasheet is not here."""
    return POWER_W.get(gpu.short)


def speed_at(watts: float, most: float) -> float:
    """Share of its matmul speed that a GPU of `most` watts keeps at a cap: 1 at `most` and above."""
    share = min(1.0, watts / most)
    moving = max(1e-3, (share - STATIC_SHARE) / (1 - STATIC_SHARE))
    return moving ** (1 / EXPONENT)


def capped(gpu: GPU, watts: float) -> GPU:
    """The GPU at a cap: its clock falls, so every peak of arithmetic does; memory and links keep theirs."""
    most = power_of(gpu)
    if most is None:
        return gpu
    speed = speed_at(watts, most)
    return replace(gpu, peaks=MappingProxyType({kind: speed * peak for kind, peak in gpu.peaks.items()}))
