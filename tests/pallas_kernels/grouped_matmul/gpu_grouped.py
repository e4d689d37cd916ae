"""The grouped matmul kernels compiled for GPUs that are not here; child only (see `tests.gpu_compile.in_child`)."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpar.compiler.targets import target_config
from jaxpar.hardware.catalogue import gpu_named
from pallas_kernels.grouped_matmul import grouped_matmul
from tests.gpu_compile import QUICKLY
from tests.pallas_kernels.attention.triton.gpu_attention import described
from tests.pallas_kernels.mosaic_compile import B200, DEVICE, compiled_kernels


def kernels(gpu: str, m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """Product and gradients of `m` rows on each of 8 GPUs, in a checked `shard_map` over rows and groups."""
    function, arrays = _over_eight(_eight(gpu), "mosaic", m, groups, k, n, dtype)
    return compiled_kernels(function, *arrays, device=B200 if gpu == "b200" else DEVICE)


def _eight(gpu: str) -> Any:
    return get_topology_desc(gpu, "cuda", target_config=target_config(gpu_named(gpu)), topology="1x1x8").devices


def _over_eight(
    devices: Any, implementation: str, m: int, groups: int, k: int, n: int, dtype: str
) -> tuple[Any, tuple[Any, ...]]:
    mesh = Mesh(np.array(devices).reshape(8), ("expert",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("expert")

    def local(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> Any:
        product = lambda rows, weights: grouped_matmul(rows, weights, sizes, implementation=implementation)
        out, pull = jax.vjp(product, rows, weights)
        return out, *pull(out)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=(spec,) * 3)
    shape = lambda dtype, *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    return mapped, (shape(dtype, 8 * m, k), shape(dtype, 8 * groups, k, n), shape(jnp.int32, 8 * groups))


def triton(gpu: str, m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> list[tuple[str, dict[str, int]]]:
    """Name and resources of the Triton kernels of product and gradients, as `kernels` has them of Mosaic's."""
    function, arrays = _over_eight(_eight(gpu), "triton", m, groups, k, n, dtype)
    with TemporaryDirectory() as folder:
        options = QUICKLY | {"xla_dump_to": folder, "xla_dump_emitter_re": ".*"}
        lowered = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
        lowered.compile(compiler_options=options)
        files = sorted(Path(folder).glob("*.ptx"))
        return [described(file, gpu) for file in files if "grouped_matmul" in file.read_text()]
