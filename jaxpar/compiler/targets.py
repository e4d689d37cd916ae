"""Descriptions of GPUs for XLA's compiler: the text of a `GpuTargetConfigProto`.

Numbers are those of XLA's own descriptions (openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb), taken from real
GPUs. A800 and H800 have the chip of A100 and H100 with fewer NVLinks: 8 of 50 GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.memory import pool_bytes

CUDA = (12, 9)
"""Version of the CUDA toolkit whose ptxas compiles the kernels (extra `compile`)."""
CUDNN = (9, 10)
"""Version of cuDNN that XLA assumes when it chooses a layout or a fusion."""

OWN_SHARE = (80, 100)
"""Share of a described GPU's memory that XLA plans with where no allocator gives a limit. On a GPU it plans with the
allocator's limit, and recomputes where the program exceeds it."""


@dataclass(frozen=True)
class _Chip:
    """What GPUs of one generation share."""

    cores: int
    """Streaming multiprocessors."""
    fpus_per_core: int
    shared_memory_per_core: int
    shared_memory_per_block: int
    """At most, when a kernel asks for it."""
    l2_bytes: int
    clock_ghz: float
    pcie_bytes: int
    tensor_clock_ghz: float | None = None
    """Clock rate at which the tensor cores reach their peak, where XLA describes them."""
    tensor_ops: int = 0
    """bfloat16 multiply-adds per tensor core and clock."""
    packed_scalar: int = 1
    """16-bit multiply-adds per scalar unit and clock."""


_CHIPS = {
    (7, 0): _Chip(80, 64, 98304, 98304, 6291456, 1.53, 17179869184),
    (8, 0): _Chip(108, 64, 167936, 166912, 41943040, 1.41, 34359738368),
    (9, 0): _Chip(132, 128, 233472, 232448, 52428800, 1.98, 68719476736, 1.8295201, 512, 2),
    (10, 0): _Chip(148, 128, 233472, 232448, 132644864, 1.965, 68719476736, 1.8353101, 1024, 1),
}

_NVLINK_BYTES = {2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""Per link and direction, by generation of NVLink."""

# Keys of xla::PrimitiveType.
_F16, _F32, _F64, _BF16, _S32, _U32 = 10, 11, 12, 16, 4, 8
_EIGHT_BIT = (2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 35, 36)


def target_config(gpu: GPU) -> str:
    """The text proto by which `jax.experimental.topologies.get_topology_desc` knows `gpu`."""
    chip, (major, minor) = _CHIPS[gpu.compute_capability], gpu.compute_capability
    features = "ACCELERATED_FEATURES" if major >= 9 else "NONE"  # sm_90a and sm_100a: wgmma, TMA, tcgen05
    kind = gpu.device_kinds[0]
    # So that XLA plans with the memory that programs may take, as it does where the program runs.
    memory = -(-pool_bytes(gpu.device_bytes) * OWN_SHARE[1] // OWN_SHARE[0])
    l2 = 62914560 if gpu.short == "h200" else chip.l2_bytes
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared_memory_per_core}
  shared_memory_per_block_optin: {chip.shared_memory_per_block}
  threads_per_core_limit: 2048
  core_count: {chip.cores}
  fpus_per_core: {chip.fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {int(gpu.hbm_bandwidth)}
  l2_cache_size: {l2}
  clock_rate_ghz: {chip.clock_ghz}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  pcie_bandwidth: {chip.pcie_bytes}
  ecc_enabled: true
  device_vendor: "NVIDIA Corporation"
  name: "{kind}"
  runtime_version: "{CUDA[0]}.{CUDA[1]}.0"
  dnn_version: "{CUDNN[0]}.{CUDNN[1]}.0"
  device_interconnect_info {{ active_links: {_links(gpu)} }}
{_rates(chip)}}}
platform_name: "CUDA"
dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} }}
runtime_version {{ major: {CUDA[0]} minor: {CUDA[1]} }}
device_description_str: "{kind}"
"""


def _links(gpu: GPU) -> int:
    generation = int(gpu.nvlink.name.removeprefix("NVLink "))
    return round(gpu.nvlink.bandwidth / _NVLINK_BYTES[generation])


def _rates(chip: _Chip) -> str:
    """Rates of scalar units and tensor cores, per type; empty where XLA's descriptions have none."""
    if chip.tensor_clock_ghz is None:
        return ""
    half = chip.fpus_per_core // 2
    scalar = {
        _S32: (half, 1),
        _U32: (half, 1),
        _F16: (chip.fpus_per_core, chip.packed_scalar),
        _F32: (chip.fpus_per_core, 1),
        _F64: (half, 1),
        _BF16: (chip.fpus_per_core, chip.packed_scalar),
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
