"""The gradient of experts' matrices compiled for H100s that are not here; child only (see `tests.gpu_compile`)."""

import re

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from jaxpar.precision.grouped import grouped_products
from jaxpar.precision.matmul import GroupScaling
from jaxpar.precision.recipe import TILES, Recipe
from tests.gpu_compile import compile_for_gpu, h100s
from tests.pallas_kernels.mosaic_compile import DEVICE


def passes_over_codes(rows: int, experts: int, inputs: int, outputs: int) -> list[str]:
    """What writes codes of 8 bits in the gradient of matrices, by the kernel, on each of 8 GPUs."""
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(8), ("expert",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("expert")
    scaling = GroupScaling(Recipe(tiles=TILES["fp8_block"], backend="mosaic"))

    def local(x: jax.Array, w: jax.Array, dy: jax.Array, sizes: jax.Array) -> jax.Array:
        options = {"implementation": "mosaic", "expected": rows}
        _, pull = jax.vjp(lambda w: grouped_products(x, [w], sizes, scaling, inward=True, **options)[0], w)
        return pull(dy)[0]

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 4, out_specs=spec)
    shape = lambda of, first, *rest: jax.ShapeDtypeStruct((8 * first, *rest), of, sharding=NamedSharding(mesh, spec))
    given = (
        shape("bfloat16", rows, inputs), shape("bfloat16", experts, inputs, outputs), shape("bfloat16", rows, outputs),
        shape("int32", experts),
    )  # fmt: skip
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=DEVICE)):
        text = compile_for_gpu(jax.jit(mapped), *given).as_text()
    _, main = text.split("ENTRY ", 1)
    return re.findall(r"%(\S+) = f8\w+\[\S+ (?!bitcast)[\w-]+\(", main)
