"""The grouped matmul of tiles compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.grouped_tiled_matmul import grouped_tiled_matmul, grouped_tiled_weight_gradients
from tests.gpu_compile import h100s
from tests.pallas_kernels.mosaic_compile import compiled_kernels


def kernel(m: int, groups: int, n: int, k: int, form: str) -> dict[str, Any]:
    """The products of `m` rows on each of 8 GPUs, with their group's matrix."""
    return _compiled(
        grouped_tiled_matmul,
        (form, m, k), ("float32", m, k // 128), ("float8_e4m3fn", groups, n, k),
        ("float32", groups, n // 128, k // 128), ("int32", groups),
    )  # fmt: skip


def gradient(m: int, groups: int, k: int, n: int, form: str) -> dict[str, Any]:
    """The gradients of matrices, of `m` rows on each of 8 GPUs."""
    return _compiled(
        grouped_tiled_weight_gradients,
        ("float8_e4m3fn", m, k), ("float32", m // 128, k), (form, m, n), ("float32", m // 128, n), ("int32", groups),
    )  # fmt: skip


def _compiled(function: Callable[..., jax.Array], *operands: tuple[Any, ...]) -> dict[str, Any]:
    """The kernel in a checked `shard_map` over rows and groups. An operand is its dtype and its shape on a GPU."""
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(8), ("expert",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("expert")
    local = partial(function, implementation="mosaic")
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * len(operands), out_specs=spec)
    shape = lambda of, first, *rest: jax.ShapeDtypeStruct((8 * first, *rest), of, sharding=NamedSharding(mesh, spec))
    return compiled_kernels(mapped, *(shape(*operand) for operand in operands))


def all_of(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """What `kernel` finds of each, in one process."""
    return [kernel(*configuration) for configuration in configurations]


def gradients(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """What `gradient` finds of each, in one process."""
    return [gradient(*configuration) for configuration in configurations]
