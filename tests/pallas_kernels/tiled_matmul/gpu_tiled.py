"""The matmul of tiles compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.tiled_matmul import tiled_matmul
from tests.gpu_compile import h100s
from tests.pallas_kernels.mosaic_compile import compiled_kernels


def kernel(m: int, n: int, k: int, squares: bool, dtype: str, left: str, right: str) -> dict[str, Any]:
    """The product of `m` rows on each of 8 GPUs with one matrix, in a checked `shard_map` over rows."""
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(8), ("data",), axis_types=(AxisType.Auto,))
    split, whole = PartitionSpec("data"), PartitionSpec()

    def local(left: jax.Array, of_left: jax.Array, right: jax.Array, of_right: jax.Array) -> jax.Array:
        return tiled_matmul(left, of_left, right, of_right, jnp.dtype(dtype), implementation="mosaic")

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(split, split, whole, whole), out_specs=split)
    shape = lambda spec, of, *sizes: jax.ShapeDtypeStruct(sizes, of, sharding=NamedSharding(mesh, spec))
    of_right = n // 128 if squares else n
    given = (
        shape(split, left, 8 * m, k), shape(split, "float32", 8 * m, k // 128),
        shape(whole, right, n, k), shape(whole, "float32", of_right, k // 128),
    )  # fmt: skip
    return compiled_kernels(mapped, *given)


def all_of(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """What `kernel` finds of each, in one process."""
    return [kernel(*configuration) for configuration in configurations]
