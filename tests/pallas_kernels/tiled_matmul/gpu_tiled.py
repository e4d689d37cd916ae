"""The matmuls of tiles compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.tiled_matmul import tiled_matmul, tiled_weight_gradients
from tests.gpu_compile import h100s
from tests.pallas_kernels.mosaic_compile import compiled_kernels


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
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(8), ("data",), axis_types=(AxisType.Auto,))
    split, (left, right), function = PartitionSpec("data"), forms, tiled_weight_gradients
    operands = [(split, left, m, k), (split, "float32", m // 128, k)]
    operands += [(split, right, m, n), (split, "float32", m // 128, n)]
    if of == "rows":
        function, stack, spec = tiled_matmul, (groups,) if groups else (), split if groups else PartitionSpec()
        operands = [(split, left, m, k), (split, "float32", m, k // 128), (spec, right, *stack, n, k)]
        operands += [(spec, "float32", *stack, n // 128 if squares else n, k // 128)]
    operands += [(split, "int32", groups)] if groups else []
    specs = tuple(spec for spec, *_ in operands)
    local = partial(function, dtype=jnp.dtype(dtype), implementation="mosaic")
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split)

    def shape(spec: PartitionSpec, dtype: str, first: int, *rest: int) -> jax.ShapeDtypeStruct:
        of_all = (8 * first if spec == split else first, *rest)
        return jax.ShapeDtypeStruct(of_all, dtype, sharding=NamedSharding(mesh, spec))

    return compiled_kernels(mapped, *(shape(*operand) for operand in operands))
