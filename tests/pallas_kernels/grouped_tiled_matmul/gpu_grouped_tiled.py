"""The grouped matmul of tiles compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.grouped_tiled_matmul import grouped_tiled_matmul
from tests.gpu_compile import h100s
from tests.pallas_kernels.mosaic_compile import compiled_kernels


def kernel(m: int, groups: int, n: int, k: int, form: str) -> dict[str, Any]:
    """The products of `m` rows on each of 8 GPUs, in a checked `shard_map` over rows and groups."""
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(8), ("expert",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("expert")

    def local(*arrays: jax.Array) -> jax.Array:
        return grouped_tiled_matmul(*arrays, implementation="mosaic")

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 5, out_specs=spec)
    shape = lambda of, *sizes: jax.ShapeDtypeStruct(sizes, of, sharding=NamedSharding(mesh, spec))
    given = (
        shape(form, 8 * m, k), shape("float32", 8 * m, k // 128), shape("float8_e4m3fn", 8 * groups, n, k),
        shape("float32", 8 * groups, n // 128, k // 128), shape("int32", 8 * groups),
    )  # fmt: skip
    return compiled_kernels(mapped, *given)


def all_of(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """What `kernel` finds of each, in one process."""
    return [kernel(*configuration) for configuration in configurations]
