"""The grouped matmul kernels compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from __future__ import annotations

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
from pallas_kernels.grouped_matmul import Matrices, grouped_feed_forward, grouped_matmul
from pallas_kernels.grouped_matmul.triton import gated
from tests.gpu_compile import QUICKLY, h100s
from tests.pallas_kernels.attention.triton.gpu_attention import described
from tests.pallas_kernels.mosaic_compile import compiled_kernels

_SPEC = PartitionSpec("expert")


def kernels(m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """Product and gradients of `m` rows on each of 8 GPUs, in a checked `shard_map` over rows and groups."""
    function, arrays = _over_eight(h100s("1x1x8"), "mosaic", m, groups, k, n, dtype)
    return compiled_kernels(function, *arrays)


def _over_eight(
    devices: Any, implementation: str, m: int, groups: int, k: int, n: int, dtype: str
) -> tuple[Any, tuple[Any, ...]]:
    mesh = Mesh(np.array(devices).reshape(8), ("expert",), axis_types=(AxisType.Auto,))
    spec = _SPEC

    def local(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> Any:
        product = lambda rows, weights: grouped_matmul(rows, weights, sizes, implementation=implementation)
        out, pull = jax.vjp(product, rows, weights)
        return out, *pull(out)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=(spec,) * 3)
    shape = lambda dtype, *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    return mapped, (shape(dtype, 8 * m, k), shape(dtype, 8 * groups, k, n), shape(jnp.int32, 8 * groups))


def feed_forward(m: int, groups: int, k: int, n: int) -> dict[str, Any]:
    """A gated feed-forward and its gradients on each of 8 GPUs, in a checked `shard_map`."""
    mesh, spec = Mesh(np.array(h100s("1x1x8")).reshape(8), ("expert",), axis_types=(AxisType.Auto,)), _SPEC

    def local(rows: jax.Array, w: Matrices, sizes: jax.Array, factors: jax.Array) -> Any:
        run = lambda rows, w, factors: grouped_feed_forward(rows, w, sizes, factors, implementation="mosaic")
        out, pull = jax.vjp(run, rows, w, factors)
        return out, *pull(out)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(spec,) * 4, out_specs=(spec,) * 4)
    shape = lambda dtype, *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    inward = shape("bfloat16", 8 * groups, k, n)
    matrices: Any = Matrices
    w = matrices(inward, inward, shape("bfloat16", 8 * groups, n, k))
    given = shape("bfloat16", 8 * m, k), w, shape(jnp.int32, 8 * groups), shape(jnp.float32, 8 * m)
    return compiled_kernels(mapped, *given)


def triton(gpu: str, m: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> list[tuple[str, dict[str, int]]]:
    """Name and resources of the Triton kernels of product and gradients, as `kernels` has them of Mosaic's."""
    devices = get_topology_desc(gpu, "cuda", target_config=target_config(gpu_named(gpu)), topology="1x1x8").devices
    function, arrays = _over_eight(devices, "triton", m, groups, k, n, dtype)
    products, shape = function, lambda of, *sizes: jax.ShapeDtypeStruct(sizes, of, sharding=arrays[0].sharding)

    def local(rows: jax.Array, up: jax.Array, gate: jax.Array, sizes: jax.Array, factors: jax.Array) -> Any:
        return gated(rows, up, gate, sizes, factors)

    hidden = jax.shard_map(local, mesh=arrays[0].sharding.mesh, in_specs=(_SPEC,) * 5, out_specs=(_SPEC,) * 3)
    function = lambda rows, w, sizes, factors: (products(rows, w, sizes), hidden(rows, w, w, sizes, factors))
    arrays = *arrays, shape("float32", 8 * m)
    with TemporaryDirectory() as folder:
        options = QUICKLY | {"xla_dump_to": folder, "xla_dump_emitter_re": ".*"}
        lowered = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
        lowered.compile(compiler_options=options)
        files = sorted(Path(folder).glob("*.ptx"))
        return [described(file, gpu) for file in files if "grouped_matmul" in file.read_text()]


def all_of(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """What `kernels` finds of each, in one process."""
    return [kernels(*configuration) for configuration in configurations]
