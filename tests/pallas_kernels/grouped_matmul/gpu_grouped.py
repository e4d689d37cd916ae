"""The grouped matmul kernels compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.grouped_matmul import grouped_matmul
from tests.gpu_compile import h100s
from tests.pallas_kernels.mosaic_compile import compiled_kernels


def kernels(m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """Product and gradients of `m` rows on each of 8 GPUs, in a checked `shard_map` over rows and groups."""
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(8), ("expert",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("expert")

    def local(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> Any:
        product = lambda rows, weights: grouped_matmul(rows, weights, sizes, implementation="mosaic")
        out, pull = jax.vjp(product, rows, weights)
        return out, *pull(out)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=(spec,) * 3)
    shape = lambda dtype, *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    arrays = shape(dtype, 8 * m, k), shape(dtype, 8 * groups, k, n), shape(jnp.int32, 8 * groups)
    return compiled_kernels(mapped, *arrays)


def all_of(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """What `kernels` finds of each, in one process."""
    return [kernels(*configuration) for configuration in configurations]
