"""Functions in a checked `shard_map` over eight GPUs that are not here; child only (`tests.gpu_compile.in_child`)."""

from typing import Any

import jax
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpar.compiler.targets import target_config
from jaxpar.hardware.catalogue import gpu_named

ROWS, HEADS = PartitionSpec("batch"), PartitionSpec("batch", None, "heads")


def over_eight(
    function: Any, *operands: tuple[Any, ...], gpu: str = "h100", heads: int = 1, out: Any = ROWS
) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    """The mapped function and its arguments. An operand is its partition, its dtype, and its shape on a GPU; `heads` of
    the GPUs share the heads of a row."""
    devices = get_topology_desc(gpu, "cuda", target_config=target_config(gpu_named(gpu)), topology="1x1x8").devices
    sizes = {"batch": 8 // heads, "heads": heads}
    mesh = Mesh(np.array(devices).reshape(*sizes.values()), (*sizes,), axis_types=(AxisType.Auto,) * 2)

    def argument(spec: PartitionSpec, dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        parts = [*map(sizes.get, spec, [1] * len(spec)), *[1] * (len(shape) - len(spec))]
        full = tuple(size * (count or 1) for size, count in zip(shape, parts, strict=True))
        return jax.ShapeDtypeStruct(full, dtype, sharding=NamedSharding(mesh, spec))

    specs = tuple(spec for spec, *_ in operands)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out)
    return mapped, [argument(*operand) for operand in operands]
