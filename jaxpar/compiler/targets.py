"""Descriptions of GPUs for XLA's compiler: the text of a `GpuTargetConfigProto`.

Numbers are those of XLA's own descriptions (openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb), taken from real
GPUs. A800 and H800 have the chip of A100 and H100 with fewer NVLinks: 8 of 50 GB/s. XLA has no L4, L40S, GeForce, A10G,
H20 or GH200: of their compute capabilities it describes an RTX A6000 (8.6, and 8.9 has the same limits), an H100 and an
RTX PRO 6000 Blackwell (12.0); clock rate and L2 are what deviceQuery of the CUDA samples prints, or the whitepaper's
boost clock. The tensor cores of an H20 do a quarter of an H100's operations, and their clock follows from its peak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.memory import pool_bytes
from jaxpar.hardware.sources import cited

CUDA = (12, 9)
"""Version of the CUDA toolkit whose ptxas compiles the kernels (extra `compile`)."""
CUDNN = (9, 10)
"""Version of cuDNN that XLA assumes when it chooses a layout or a fusion."""

XLA_SHARE = (80, 100)
"""Share of a described GPU's memory that XLA plans with where no allocator gives a limit. On a GPU it plans with the
allocator's limit, and recomputes where the program exceeds it."""


@dataclass(frozen=True)
class _Generation:
    """Facts that GPUs of one compute capability share."""

    fpus_per_core: int
    shared_memory_per_core: int
    shared_memory_per_block: int
    """Largest size in bytes, which a kernel has to ask for."""
    threads_per_core: int = 2048
    accelerated: bool = False
    """Whether XLA compiles for sm_90a or sm_100a: wgmma, TMA, tcgen05."""
    packed_scalar: int = 1
    """16-bit multiply-adds per scalar unit and clock."""


XLA = cited("XLA's own descriptions, xla/backends/gpu/target_config/specs; others: deviceQuery, whitepapers")
_GENERATIONS: Annotated[dict[tuple[int, int], _Generation], XLA] = {
    (7, 0): _Generation(64, 98304, 98304),
    (8, 0): _Generation(64, 167936, 166912),
    (8, 6): _Generation(128, 102400, 101376, 1536),
    (8, 9): _Generation(128, 102400, 101376, 1536),
    (9, 0): _Generation(128, 233472, 232448, accelerated=True, packed_scalar=2),
    (10, 0): _Generation(128, 233472, 232448, accelerated=True),
    (12, 0): _Generation(128, 102400, 101376, 1536),
}
"""Multiprocessors by compute capability."""


@dataclass(frozen=True)
class _Chip:
    """Facts of one GPU."""

    l2_bytes: int
    clock_ghz: float
    tensor_clock_ghz: float | None = None
    """Clock rate at which the tensor cores reach their peak, where XLA describes them."""
    tensor_ops: int = 0
    """bfloat16 multiply-adds per tensor core and clock."""


_A100: Annotated[_Chip, XLA] = _Chip(41943040, 1.41)
"""L2 and clock rate of an A100."""
_H100: Annotated[_Chip, XLA] = _Chip(52428800, 1.98, 1.8295201, 512)
"""The same of an H100."""
_CHIPS: Annotated[dict[str, _Chip], XLA] = {
    "v100-32": _Chip(6291456, 1.53),
    "a100-40": _A100,
    "a100-80": _A100,
    "a800": _A100,
    "h100": _H100,
    "h800": _H100,
    "h200": replace(_H100, l2_bytes=62914560),
    "gh200": replace(_H100, l2_bytes=62914560),
    "h20": _Chip(62914560, 1.98, 1.853, 128),
    "b200": _Chip(132644864, 1.965, 1.8353101, 1024),
    "gb200": _Chip(135528448, 2.062, 1.9259081, 1024),
    "a10g": _Chip(6291456, 1.71),
    "l4": _Chip(50331648, 2.04),
    "l40s": _Chip(100663296, 2.52),
    "rtx4090": _Chip(75497472, 2.52),
    "rtx5090": _Chip(100663296, 2.407),
}
"""The same of each GPU."""

_NVLINK_BYTES: Annotated[dict[int, float], cited("NVIDIA's datasheets")] = {2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""Per link and direction, by generation of NVLink."""

# Keys of xla::PrimitiveType.
_F16, _F32, _F64, _BF16, _S32, _U32 = 10, 11, 12, 16, 4, 8
_EIGHT_BIT = (2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 35, 36)


def target_config(gpu: GPU) -> str:
    """The text proto by which `jax.experimental.topologies.get_topology_desc` knows `gpu`."""
    chip, generation = _CHIPS[gpu.short], _GENERATIONS[gpu.compute_capability]
    major, minor = gpu.compute_capability
    features = "ACCELERATED_FEATURES" if generation.accelerated else "NONE"
    kind = gpu.device_kinds[0]
    # So that XLA plans with the memory that programs may take, as it does where the program runs.
    memory = -(-pool_bytes(gpu.device_bytes) * XLA_SHARE[1] // XLA_SHARE[0])
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {generation.shared_memory_per_core}
  shared_memory_per_block_optin: {generation.shared_memory_per_block}
  threads_per_core_limit: {generation.threads_per_core}
  core_count: {gpu.multiprocessors}
  fpus_per_core: {generation.fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {int(gpu.hbm_bandwidth)}
  l2_cache_size: {chip.l2_bytes}
  clock_rate_ghz: {chip.clock_ghz}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  pcie_bandwidth: {round(gpu.host.bandwidth / 1e9) * 2**30}
  ecc_enabled: true
  device_vendor: "NVIDIA Corporation"
  name: "{kind}"
  runtime_version: "{CUDA[0]}.{CUDA[1]}.0"
  dnn_version: "{CUDNN[0]}.{CUDNN[1]}.0"
{_links(gpu)}{_rates(generation, chip)}}}
platform_name: "CUDA"
dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} }}
runtime_version {{ major: {CUDA[0]} minor: {CUDA[1]} }}
device_description_str: "{kind}"
"""


def _links(gpu: GPU) -> str:
    """The number of its NVLinks; empty without, as in XLA's descriptions of cards."""
    name, _, generation = gpu.node.name.partition(" ")
    if name != "NVLink":
        return ""
    links = round(gpu.node.bandwidth / _NVLINK_BYTES[int(generation)])
    return f"  device_interconnect_info {{ active_links: {links} }}\n"


def _rates(generation: _Generation, chip: _Chip) -> str:
    """Rates of scalar units and tensor cores, per type; empty where XLA's descriptions have none."""
    if chip.tensor_clock_ghz is None:
        return ""
    half = generation.fpus_per_core // 2
    scalar = {
        _S32: (half, 1),
        _U32: (half, 1),
        _F16: (generation.fpus_per_core, generation.packed_scalar),
        _F32: (generation.fpus_per_core, 1),
        _F64: (half, 1),
        _BF16: (generation.fpus_per_core, generation.packed_scalar),
    }
    matrix = {_F16: (4, chip.tensor_ops), _F32: (4, chip.tensor_ops // 2), _BF16: (4, chip.tensor_ops)}
    matrix |= dict.fromkeys(_EIGHT_BIT, (4, 2 * chip.tensor_ops))
    return _unit("scalar", chip.clock_ghz, scalar) + _unit("matrix", chip.tensor_clock_ghz, matrix)


def _unit(name: str, clock: float, rates: dict[int, tuple[int, int]]) -> str:
    infos = "".join(
        f"    rate_infos {{ key: {kind} value {{ clock_rate_ghz: {clock} units_per_core: {units} "
        f"ops_per_clock: {operations} }} }}\n"
        for kind, (units, operations) in sorted(rates.items())
    )
    return f"  {name}_unit_description {{\n{infos}  }}\n"
