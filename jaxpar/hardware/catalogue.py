"""GPUs that training runs on: dense peaks, memory, bandwidths and links, each with its source.

Peaks are dense: datasheets of Ampere and later print the figure with 2:4 sparsity, twice these. `device_bytes` is what
XLA's own descriptions of these GPUs have (xla/backends/gpu/target_config/specs), which were taken from real ones; for
V100-32 and H200, where XLA has another card or the nominal size, what CUDA programs print.
A GPU that is not listed has no peak, and nothing is guessed for it: `gpu_of` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, one_of, quoted
from jaxpar.hardware.links import Link, network, nvlink, pcie

GIB = 2**30
TERA = 1e12

Arithmetic = Literal["float32", "tensorfloat32", "bfloat16", "float16", "float8"]
"""Type in which a matmul multiplies; `tensorfloat32` is float32 data on the tensor cores."""


@dataclass(frozen=True)
class GPU:
    """One GPU model, as its datasheet describes it."""

    short: str
    """What users call it, as in `h100`."""
    name: str
    """Name with form factor and memory, as in `H100-SXM-80GB`."""
    device_kinds: tuple[str, ...]
    """Its names in `jax.Device.device_kind`."""
    peaks: Mapping[Arithmetic, float]
    """Dense peak of matmuls in FLOP/s per type; a type that the GPU has no units for is absent."""
    hbm_bytes: int
    """Memory in bytes; the driver keeps a few percent of it."""
    device_bytes: int
    """Memory that CUDA reports to a program: the most that can be allocated."""
    hbm_bandwidth: float
    """Peak memory bandwidth in bytes per second."""
    compute_capability: tuple[int, int]
    """CUDA compute capability: (9, 0) is Hopper."""
    nvlink: Link
    """To the other GPUs of the host."""
    pcie: Link
    """To the host's memory."""
    network: Link
    """To other hosts by default: that of the server that `network.source` names."""
    source: str
    """Source of peaks, memory and its bandwidth."""

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
        short="v100-32",
        name="V100-SXM2-32GB",
        device_kinds=("Tesla V100-SXM2-32GB",),
        peaks=_VOLTA,
        hbm_bytes=32 * GIB,
        device_bytes=round(31.73 * GIB),
        hbm_bandwidth=900e9,
        compute_capability=(7, 0),
        nvlink=nvlink(2, 300, "V100 datasheet"),
        pcie=pcie(3),
        network=network(50, "DGX-1 with V100: 4 x 100 Gb/s for 8 GPUs"),
        source="NVIDIA V100 Tensor Core GPU datasheet (2020), column V100 SXM2",
    ),
    GPU(
        short="a100-40",
        name="A100-SXM-40GB",
        device_kinds=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        peaks=_AMPERE,
        hbm_bytes=40 * GIB,
        device_bytes=42_331_013_120,
        hbm_bandwidth=1555e9,
        compute_capability=(8, 0),
        nvlink=nvlink(3, 600, "A100 datasheet"),
        pcie=pcie(4),
        network=network(200, "DGX A100 datasheet: 8 x 200 Gb/s"),
        source="NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020), comparison of data-center GPUs",
    ),
    GPU(
        short="a100-80",
        name="A100-SXM-80GB",
        device_kinds=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        peaks=_AMPERE,
        hbm_bytes=80 * GIB,
        device_bytes=85_100_068_864,
        hbm_bandwidth=2039e9,
        compute_capability=(8, 0),
        nvlink=nvlink(3, 600, "A100 datasheet"),
        pcie=pcie(4),
        network=network(200, "DGX A100 datasheet: 8 x 200 Gb/s"),
        source="NVIDIA A100 Tensor Core GPU datasheet (2021), column A100 80GB SXM",
    ),
    GPU(
        short="a800",
        name="A800-SXM-80GB",
        device_kinds=("NVIDIA A800-SXM4-80GB",),
        peaks=_AMPERE,
        hbm_bytes=80 * GIB,
        device_bytes=85_100_068_864,
        hbm_bandwidth=2039e9,
        compute_capability=(8, 0),
        nvlink=nvlink(3, 400, "A800 datasheet"),
        pcie=pcie(4),
        network=network(200, "taken as that of DGX A100: 8 x 200 Gb/s"),
        source="NVIDIA A800 datasheet (2022): an A100 80GB SXM with NVLink at 400 GB/s",
    ),
    GPU(
        short="h100",
        name="H100-SXM-80GB",
        device_kinds=("NVIDIA H100 80GB HBM3",),
        peaks=_HOPPER,
        hbm_bytes=80 * GIB,
        device_bytes=84_942_979_072,
        hbm_bandwidth=3.35e12,
        compute_capability=(9, 0),
        nvlink=nvlink(4, 900, "H100 datasheet"),
        pcie=pcie(5),
        network=network(400, "DGX H100 datasheet: 8 x 400 Gb/s"),
        source="NVIDIA H100 Tensor Core GPU datasheet (2023), column H100 SXM; "
        "decimals from the Hopper Architecture whitepaper v1.04",
    ),
    GPU(
        short="h800",
        name="H800-SXM-80GB",
        device_kinds=("NVIDIA H800",),
        peaks=_HOPPER,
        hbm_bytes=80 * GIB,
        device_bytes=84_942_979_072,
        hbm_bandwidth=3.35e12,
        compute_capability=(9, 0),
        nvlink=nvlink(4, 400, "H800 datasheet"),
        pcie=pcie(5),
        network=network(100, "nodes of Yuan et al., USENIX ATC 2024: 8 x 100 Gb/s; others have 8 x 400"),
        source="NVIDIA H800 datasheet (2023), column H800 SXM: an H100 SXM with NVLink at 400 GB/s",
    ),
    GPU(
        short="h200",
        name="H200-SXM-141GB",
        device_kinds=("NVIDIA H200",),
        peaks=_HOPPER,
        hbm_bytes=141 * GIB,
        device_bytes=150_109_880_320,
        hbm_bandwidth=4.8e12,
        compute_capability=(9, 0),
        nvlink=nvlink(4, 900, "H200 datasheet"),
        pcie=pcie(5),
        network=network(400, "DGX H200 datasheet: 8 x 400 Gb/s"),
        source="NVIDIA H200 Tensor Core GPU datasheet (2024), column H200 SXM",
    ),
    GPU(
        short="b200",
        name="B200-SXM-180GB",
        device_kinds=("NVIDIA B200",),
        peaks=_BLACKWELL,
        hbm_bytes=180 * GIB,
        device_bytes=191_514_411_008,
        hbm_bandwidth=8e12,
        compute_capability=(10, 0),
        nvlink=nvlink(5, 1800, "HGX B200 datasheet"),
        pcie=pcie(5),
        network=network(400, "DGX B200 user guide: 8 x 400 Gb/s"),
        source="NVIDIA HGX B200 datasheet (2024), an eighth of the board; its sparse peaks halved",
    ),
)

_BY_SHORT = {gpu.short: gpu for gpu in GPUS}
_BY_KIND = {kind: gpu for gpu in GPUS for kind in gpu.device_kinds}


def gpu_of(device_kind: str) -> GPU | None:
    """The GPU that JAX names `device_kind`, or None where the catalogue has none of that name.

    The match is exact: `NVIDIA H100 PCIe` and a MIG slice of an H100 have other peaks.
    """
    return _BY_KIND.get(device_kind)


def gpu_named(name: str) -> GPU:
    """The GPU of a user's `name`, in any case: `h100`, `a100-80`, or in full `H100-SXM-80GB`.

    Raises:
        UserError: there is none; the message names the nearest.
    """
    wanted = name.strip().lower()
    for gpu in GPUS:
        if wanted in (gpu.short, gpu.name.lower()):
            return gpu
    family = [short for short in _BY_SHORT if wanted and short.startswith(wanted)]
    meant = f"; did you mean {one_of(family)}?" if family else did_you_mean(wanted, _BY_SHORT)
    raise UserError(f"no GPU is called {quoted(name)}{meant or f'; there are {one_of(_BY_SHORT)}'}")
