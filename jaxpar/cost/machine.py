"""Limits of the speed of our kernels on a GPU, by bytes and operations of their steps (`pallas_kernels.bounds`)."""

from __future__ import annotations

from functools import lru_cache

from jaxpar.hardware.catalogue import GPU
from pallas_kernels import bounds
from pallas_kernels.expected import Machine, blackwell, hopper


def machine_of(gpu: GPU) -> Machine | None:
    """Rates of a GPU that our Mosaic kernels are for; None of another."""
    make = {(9, 0): hopper, (10, 0): blackwell}.get(gpu.compute_capability)
    return None if make is None else make(gpu.multiprocessors, gpu.training_peak, gpu.hbm_bandwidth)


@lru_cache(maxsize=10_000)
def grouped_limit(machine: Machine | None, columns: int, item: int) -> float:
    """FLOP/s at most of grouped matmuls of numbers of 1 or 2 bytes; infinite where no kernel of ours multiplies."""
    if machine is None or item > 2 or (item == 1 and machine.tensor_memory):
        return float("inf")
    return bounds.grouped(columns, machine) if item == 2 else bounds.tiled(columns, machine)


@lru_cache(maxsize=1_000)
def attention_limits(machine: Machine | None, kernels: str, widths: tuple[int, int], item: int) -> tuple[float, float]:
    """FLOP/s at most of attention forward and backward; infinite where it is not our kernel of one backward launch."""
    if machine is None or machine.tensor_memory or kernels != "mosaic" or item != 2:
        return float("inf"), float("inf")
    return bounds.attention(*widths, machine)
