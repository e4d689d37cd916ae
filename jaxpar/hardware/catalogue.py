"""GPUs that training runs on: dense peaks, memory, bandwidths and links, each with its source.

Peaks are dense: datasheets of Ampere and later print the figure with 2:4 sparsity, twice these. Those of 16 and 8 bits
accumulate in float32, as matmuls of training do, at which GeForce cards run at half of their rate with float16.
`device_bytes` and `multiprocessors` are those of XLA's own descriptions of these GPUs (xla/backends/gpu/target_config/
specs), which were taken from real ones. Where XLA has none, has another card or the nominal size (V100-32, H200, and
A10G, L4, L40S, GeForce, H20, GH200), they are what CUDA programs print (deviceQuery of the CUDA samples, PyTorch).
GDDR6 keeps its error correction in the memory itself: programs get 6% less of it.
A GPU that is not listed has no peak, and nothing is guessed for it: `gpu_of` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, join_or, quoted
from jaxpar.hardware.links import Link, network, nvlink, nvlink_c2c, pcie
from jaxpar.pages.units import GIB, TERA

Arithmetic = Literal["float32", "tensorfloat32", "bfloat16", "float16", "float8"]
"""Type in which a matmul multiplies; `tensorfloat32` is float32 data on the tensor cores."""


@dataclass(frozen=True)
class GPU:
    """One GPU model, as its datasheet describes it."""

    short: str
    """Short name in configurations, such as `h100`."""
    name: str
    """Name with form factor and memory, as in `H100-SXM-80GB`."""
    device_kinds: tuple[str, ...]
    """The names of the GPU in `jax.Device.device_kind`."""
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
    multiprocessors: int
    """Number of streaming multiprocessors."""
    node: Link
    """Link to the other GPUs of the host: NVLink, or PCI Express for cards without it."""
    host: Link
    """Link to the host's memory."""
    network: Link
    """Default link to other hosts: that of the server in `network.source`."""
    source: str
    """Source of peaks, memory and its bandwidth."""
    host_bytes: int | None = None
    """Memory of the CPU that is on one module with the GPU, its share of it; None for GPUs in a server of any size."""

    @property
    def training_dtype(self) -> Arithmetic:
        """bfloat16; float16 on Volta, which has no bfloat16 units."""
        return "bfloat16" if "bfloat16" in self.peaks else "float16"

    @property
    def training_peak(self) -> float:
        """FLOP/s that MFU divides by: dense, in `training_dtype`."""
        return self.peaks[self.training_dtype]

    @property
    def eight_bit_peak(self) -> float | None:
        """FLOP/s of dense products of 8-bit floats; None where the GPU has no units for them."""
        return self.peaks.get("float8")


def _teraflops(**peaks: float) -> Mapping[Arithmetic, float]:
    return MappingProxyType({kind: value * TERA for kind, value in peaks.items()})  # pyright: ignore[reportReturnType]


_VOLTA = _teraflops(float32=15.7, float16=125.0)
_AMPERE = _teraflops(float32=19.5, tensorfloat32=156.0, bfloat16=312.0, float16=312.0)
_HOPPER = _teraflops(float32=66.9, tensorfloat32=494.7, bfloat16=989.4, float16=989.4, float8=1978.9)
_BLACKWELL = _teraflops(float32=75.0, tensorfloat32=1125.0, bfloat16=2250.0, float16=2250.0, float8=4500.0)
_H20 = _teraflops(float32=44.0, tensorfloat32=74.0, bfloat16=148.0, float16=148.0, float8=296.0)
_GB200 = _teraflops(float32=80.0, tensorfloat32=1250.0, bfloat16=2500.0, float16=2500.0, float8=5000.0)
_A10G = _teraflops(float32=35.0, tensorfloat32=35.0, bfloat16=70.0, float16=70.0)
_L4 = _teraflops(float32=30.3, tensorfloat32=60.5, bfloat16=121.0, float16=121.0, float8=242.5)
_L40S = _teraflops(float32=91.6, tensorfloat32=183.0, bfloat16=362.05, float16=362.05, float8=733.0)
_RTX_4090 = _teraflops(float32=82.6, tensorfloat32=82.6, bfloat16=165.2, float16=165.2, float8=330.3)
_RTX_5090 = _teraflops(float32=104.8, tensorfloat32=104.8, bfloat16=209.5, float16=209.5, float8=419.0)

_GEFORCE_HOSTS = "taken as one card of 100 Gb/s for 8 GPUs, as in Amazon's hosts of A10G and L4"

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
        multiprocessors=80,
        node=nvlink(2, 300, "V100 datasheet"),
        host=pcie(3),
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
        multiprocessors=108,
        node=nvlink(3, 600, "A100 datasheet"),
        host=pcie(4),
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
        multiprocessors=108,
        node=nvlink(3, 600, "A100 datasheet"),
        host=pcie(4),
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
        multiprocessors=108,
        node=nvlink(3, 400, "A800 datasheet"),
        host=pcie(4),
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
        multiprocessors=132,
        node=nvlink(4, 900, "H100 datasheet"),
        host=pcie(5),
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
        multiprocessors=132,
        node=nvlink(4, 400, "H800 datasheet"),
        host=pcie(5),
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
        multiprocessors=132,
        node=nvlink(4, 900, "H200 datasheet"),
        host=pcie(5),
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
        multiprocessors=148,
        node=nvlink(5, 1800, "HGX B200 datasheet"),
        host=pcie(5),
        network=network(400, "DGX B200 user guide: 8 x 400 Gb/s"),
        source="NVIDIA HGX B200 datasheet (2024), an eighth of the board; its sparse peaks halved",
    ),
    GPU(
        short="gb200",
        name="GB200-186GB",
        device_kinds=("NVIDIA GB200",),
        peaks=_GB200,
        hbm_bytes=186 * GIB,
        device_bytes=197_897_748_480,
        hbm_bandwidth=8e12,
        compute_capability=(10, 0),
        multiprocessors=152,
        node=nvlink(5, 1800, "GB200 NVL72 datasheet"),
        host=nvlink_c2c(450, "GB200 NVL72 datasheet: 900 GB/s of the Grace CPU, shared by its two GPUs"),
        network=network(400, "DGX GB200 user guide: 4 x 400 Gb/s for the 4 GPUs of a compute tray"),
        source="NVIDIA GB200 NVL72 datasheet (2024), half of a superchip; its sparse peaks halved",
        host_bytes=240 * 10**9,
    ),
    GPU(
        short="gh200",
        name="GH200-96GB",
        device_kinds=("NVIDIA GH200 480GB",),
        peaks=_HOPPER,
        hbm_bytes=96 * GIB,
        device_bytes=102_005_473_280,
        hbm_bandwidth=4e12,
        compute_capability=(9, 0),
        multiprocessors=132,
        node=nvlink(4, 900, "GH200 Grace Hopper Superchip datasheet"),
        host=nvlink_c2c(900, "GH200 Grace Hopper Superchip datasheet"),
        network=network(400, "taken as that of DGX H100: 400 Gb/s for each GPU"),
        source="NVIDIA GH200 Grace Hopper Superchip datasheet (2023), 96 GB of HBM3; peaks of the H100 SXM",
        host_bytes=480 * 10**9,
    ),
    GPU(
        short="h20",
        name="H20-SXM-96GB",
        device_kinds=("NVIDIA H20",),
        peaks=_H20,
        hbm_bytes=96 * GIB,
        device_bytes=97_285 * 2**20,
        hbm_bandwidth=4e12,
        compute_capability=(9, 0),
        multiprocessors=78,
        node=nvlink(4, 900, "H20 datasheet"),
        host=pcie(5),
        network=network(400, "taken as that of DGX H100: 8 x 400 Gb/s"),
        source="NVIDIA H20 datasheet (2023), whose peaks are dense",
    ),
    GPU(
        short="a10g",
        name="A10G-24GB",
        device_kinds=("NVIDIA A10G",),
        peaks=_A10G,
        hbm_bytes=24 * GIB,
        device_bytes=22_587 * 2**20,
        hbm_bandwidth=600e9,
        compute_capability=(8, 6),
        multiprocessors=80,
        node=pcie(4),
        host=pcie(4),
        network=network(12.5, "Amazon EC2 g5.48xlarge: 100 Gb/s for 8 GPUs"),
        source="NVIDIA A10G datasheet (2021), which has 56% of the A10's 16-bit peak; derived again from the GA102 "
        "whitepaper: 80 multiprocessors x 4 tensor cores x 64 multiply-adds x 1.71 GHz",
    ),
    GPU(
        short="l4",
        name="L4-24GB",
        device_kinds=("NVIDIA L4",),
        peaks=_L4,
        hbm_bytes=24 * GIB,
        device_bytes=23_583_784_960,
        hbm_bandwidth=300e9,
        compute_capability=(8, 9),
        multiprocessors=58,
        node=pcie(4),
        host=pcie(4),
        network=network(12.5, "Amazon EC2 g6.48xlarge: 100 Gb/s for 8 GPUs"),
        source="NVIDIA L4 Tensor Core GPU datasheet (2023); its sparse peaks halved",
    ),
    GPU(
        short="l40s",
        name="L40S-48GB",
        device_kinds=("NVIDIA L40S",),
        peaks=_L40S,
        hbm_bytes=48 * GIB,
        device_bytes=47_576_711_168,
        hbm_bandwidth=864e9,
        compute_capability=(8, 9),
        multiprocessors=142,
        node=pcie(4),
        host=pcie(4),
        network=network(50, "Amazon EC2 g6e.48xlarge: 400 Gb/s for 8 GPUs"),
        source="NVIDIA L40S datasheet (2023)",
    ),
    GPU(
        short="rtx4090",
        name="RTX-4090-24GB",
        device_kinds=("NVIDIA GeForce RTX 4090",),
        peaks=_RTX_4090,
        hbm_bytes=24 * GIB,
        device_bytes=25_250_627_584,
        hbm_bandwidth=1008e9,
        compute_capability=(8, 9),
        multiprocessors=128,
        node=pcie(4),
        host=pcie(4),
        network=network(12.5, _GEFORCE_HOSTS),
        source="NVIDIA Ada GPU Architecture whitepaper v2.02 (2023), appendix A, with float32 accumulation",
    ),
    GPU(
        short="rtx5090",
        name="RTX-5090-32GB",
        device_kinds=("NVIDIA GeForce RTX 5090",),
        peaks=_RTX_5090,
        hbm_bytes=32 * GIB,
        device_bytes=33_677_180_928,
        hbm_bandwidth=1792e9,
        compute_capability=(12, 0),
        multiprocessors=170,
        node=pcie(5),
        host=pcie(5),
        network=network(12.5, _GEFORCE_HOSTS),
        source="NVIDIA RTX Blackwell GPU Architecture whitepaper (2025), appendix A, with float32 accumulation",
    ),
)

_BY_SHORT = {gpu.short: gpu for gpu in GPUS}
_BY_KIND = {kind: gpu for gpu in GPUS for kind in gpu.device_kinds}


def gpu_of(device_kind: str) -> GPU | None:
    """The GPU that JAX names `device_kind`, or None if the catalogue lacks it.

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
    meant = f"; did you mean {join_or(family)}?" if family else did_you_mean(wanted, _BY_SHORT)
    raise UserError(f"no GPU is called {quoted(name)}{meant or f'; there are {join_or(_BY_SHORT)}'}")
