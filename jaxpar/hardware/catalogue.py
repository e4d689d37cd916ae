"""GPUs that training runs on: dense peaks, memory and memory bandwidth, each with its source.

Peaks are dense: datasheets of Ampere and later print the figure with 2:4 sparsity, twice these.
A GPU that is not listed has no peak, and nothing is guessed for it: `gpu_of` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

GIB = 2**30
TERA = 1e12

Arithmetic = Literal["float32", "tensorfloat32", "bfloat16", "float16", "float8"]
"""Type in which a matmul multiplies; `tensorfloat32` is float32 data on the tensor cores."""


@dataclass(frozen=True)
class GPU:
    """One GPU model, as its datasheet describes it."""

    name: str
    """Short name, as in `H100-SXM-80GB`."""
    device_kinds: tuple[str, ...]
    """The strings by which `jax.Device.device_kind` names it."""
    peaks: Mapping[Arithmetic, float]
    """Dense peak of matmuls in FLOP/s per type; a type that the GPU has no units for is absent."""
    hbm_bytes: int
    """Memory in bytes; the driver and the runtime keep a few percent of it."""
    hbm_bandwidth: float
    """Peak memory bandwidth in bytes per second."""
    source: str
    """Where the numbers stand."""

    @property
    def training_peak(self) -> float:
        """FLOP/s that MFU divides by: dense bfloat16; float16 on Volta, which has no bfloat16 units."""
        return self.peaks["bfloat16"] if "bfloat16" in self.peaks else self.peaks["float16"]


def _teraflops(**peaks: float) -> Mapping[Arithmetic, float]:
    return MappingProxyType({kind: value * TERA for kind, value in peaks.items()})  # pyright: ignore[reportReturnType]


_VOLTA = _teraflops(float32=15.7, float16=125.0)
_AMPERE = _teraflops(float32=19.5, tensorfloat32=156.0, bfloat16=312.0, float16=312.0)
_HOPPER = _teraflops(float32=66.9, tensorfloat32=494.7, bfloat16=989.4, float16=989.4, float8=1978.9)
_BLACKWELL = _teraflops(float32=75.0, tensorfloat32=1125.0, bfloat16=2250.0, float16=2250.0, float8=4500.0)

GPUS: tuple[GPU, ...] = (
    GPU(
        name="V100-SXM2-32GB",
        device_kinds=("Tesla V100-SXM2-32GB",),
        peaks=_VOLTA,
        hbm_bytes=32 * GIB,
        hbm_bandwidth=900e9,
        source="NVIDIA V100 Tensor Core GPU datasheet (2020), column V100 SXM2",
    ),
    GPU(
        name="A100-SXM-40GB",
        device_kinds=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        peaks=_AMPERE,
        hbm_bytes=40 * GIB,
        hbm_bandwidth=1555e9,
        source="NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020), comparison of data-center GPUs",
    ),
    GPU(
        name="A100-SXM-80GB",
        device_kinds=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        peaks=_AMPERE,
        hbm_bytes=80 * GIB,
        hbm_bandwidth=2039e9,
        source="NVIDIA A100 Tensor Core GPU datasheet (2021), column A100 80GB SXM",
    ),
    GPU(
        name="A800-SXM-80GB",
        device_kinds=("NVIDIA A800-SXM4-80GB",),
        peaks=_AMPERE,
        hbm_bytes=80 * GIB,
        hbm_bandwidth=2039e9,
        source="NVIDIA A800 datasheet (2022): an A100 80GB SXM with NVLink at 400 GB/s",
    ),
    GPU(
        name="H100-SXM-80GB",
        device_kinds=("NVIDIA H100 80GB HBM3",),
        peaks=_HOPPER,
        hbm_bytes=80 * GIB,
        hbm_bandwidth=3.35e12,
        source="NVIDIA H100 Tensor Core GPU datasheet (2023), column H100 SXM; "
        "decimals from the Hopper Architecture whitepaper v1.04",
    ),
    GPU(
        name="H800-SXM-80GB",
        device_kinds=("NVIDIA H800",),
        peaks=_HOPPER,
        hbm_bytes=80 * GIB,
        hbm_bandwidth=3.35e12,
        source="NVIDIA H800 datasheet (2023), column H800 SXM: an H100 SXM with NVLink at 400 GB/s",
    ),
    GPU(
        name="H200-SXM-141GB",
        device_kinds=("NVIDIA H200",),
        peaks=_HOPPER,
        hbm_bytes=141 * GIB,
        hbm_bandwidth=4.8e12,
        source="NVIDIA H200 Tensor Core GPU datasheet (2024), column H200 SXM",
    ),
    GPU(
        name="B200-SXM-180GB",
        device_kinds=("NVIDIA B200",),
        peaks=_BLACKWELL,
        hbm_bytes=180 * GIB,
        hbm_bandwidth=8e12,
        source="NVIDIA HGX B200 datasheet (2024), an eighth of the board; its sparse peaks halved",
    ),
)

_BY_KIND = {kind: gpu for gpu in GPUS for kind in gpu.device_kinds}


def gpu_of(device_kind: str) -> GPU | None:
    """The GPU that JAX names `device_kind`, or None where the catalogue has none of that name.

    The match is exact: `NVIDIA H100 PCIe` and a MIG slice of an H100 are other machines with other peaks.
    """
    return _BY_KIND.get(device_kind)
