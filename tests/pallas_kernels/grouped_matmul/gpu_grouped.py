"""The grouped matmul kernels compiled for GPUs that are not here; child only (see `tests.gpu_compile.in_child`)."""

from typing import Any

import jax

from pallas_kernels.grouped_matmul import grouped_matmul
from tests.pallas_kernels.attention.triton.gpu_attention import compiled
from tests.pallas_kernels.mosaic_compile import B200, DEVICE, compiled_kernels
from tests.pallas_kernels.over_eight import ROWS, over_eight


def kernels(gpu: str, m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """Product and gradients of `m` rows on each of 8 GPUs, in a checked `shard_map` over rows and groups."""
    function, arrays = _products(gpu, "mosaic", m, groups, k, n, dtype)
    return compiled_kernels(function, *arrays, device=B200 if gpu == "b200" else DEVICE)


def _products(gpu: str, implementation: str, m: int, groups: int, k: int, n: int, dtype: str) -> tuple[Any, list[Any]]:
    def local(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> Any:
        product = lambda rows, weights: grouped_matmul(rows, weights, sizes, implementation=implementation)
        out, pull = jax.vjp(product, rows, weights)
        return out, *pull(out)

    return over_eight(local, (ROWS, dtype, m, k), (ROWS, dtype, groups, k, n), (ROWS, "int32", groups), gpu=gpu)


def triton(gpu: str, m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> list[tuple[str, dict[str, int]]]:
    """Name and resources of the Triton kernels of product and gradients, as `kernels` has them of Mosaic's."""
    return compiled(*_products(gpu, "triton", m, groups, k, n, dtype), gpu, "grouped_matmul")
