"""The matmuls of tiles compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.tiled_matmul import tiled_matmul, tiled_weight_gradients
from tests.pallas_kernels.mosaic_compile import compiled_kernels
from tests.pallas_kernels.over_eight import ROWS, over_eight


class Compiled(NamedTuple):
    """The arguments of `kernel`, of one GPU."""

    m: int
    n: int
    k: int
    groups: int = 0
    of: str = "rows"
    squares: bool = True
    dtype: str = "bfloat16"
    left: str = "float8_e4m3fn"
    right: str = "float8_e4m3fn"


def kernel(
    m: int, n: int, k: int, groups: int, of: Literal["rows", "weights"], squares: bool, dtype: str, *forms: str
) -> dict[str, Any]:
    """The product of `m` rows on each of 8 GPUs with one matrix, or with those of groups, or the gradients of these; in
    a checked `shard_map` over rows and groups."""
    split, (left, right), function = ROWS, forms, tiled_weight_gradients
    operands = [(split, left, m, k), (split, "float32", m // 128, k)]
    operands += [(split, right, m, n), (split, "float32", m // 128, n)]
    if of == "rows":
        function, stack, spec = tiled_matmul, (groups,) if groups else (), split if groups else PartitionSpec()
        operands = [(split, left, m, k), (split, "float32", m, k // 128), (spec, right, *stack, n, k)]
        operands += [(spec, "float32", *stack, n // 128 if squares else n, k // 128)]
    operands += [(split, "int32", groups)] if groups else []
    local = partial(function, dtype=jnp.dtype(dtype), implementation="mosaic")
    mapped, arguments = over_eight(local, *operands)
    return compiled_kernels(mapped, *arguments)
