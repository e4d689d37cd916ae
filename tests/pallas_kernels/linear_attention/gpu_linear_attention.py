"""Linear attention's kernels compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpar.layers.linear_attention.recurrence import scan
from tests.gpu_compile import h100s
from tests.pallas_kernels.linear_attention.linear64 import Streams
from tests.pallas_kernels.mosaic_compile import compiled_kernels


def kernels(tokens: int, heads: int, key: int, value: int, delta: bool, by_key: bool) -> dict[str, Any]:
    """Outputs and gradients of a row on each of 8 GPUs, in a checked `shard_map`."""
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(8), ("data",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("data")

    def local(streams: Streams, documents: jax.Array, state: jax.Array) -> Any:
        run = lambda streams, state: scan(streams, documents, state, documents[:, 0], backend="mosaic")
        out, pull = jax.vjp(run, streams, state)
        return out, pull(out)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec)
    shape = lambda *sizes, dtype="float32": jax.ShapeDtypeStruct((8, *sizes), dtype, sharding=NamedSharding(mesh, spec))
    of_tokens = lambda *sizes, dtype="bfloat16": shape(tokens, heads, *sizes, dtype=dtype)
    decays, rate = of_tokens(key if by_key else 1, dtype="float32"), of_tokens(dtype="float32") if delta else None
    given = Streams(of_tokens(key), of_tokens(key), of_tokens(value), decays, rate)
    return compiled_kernels(mapped, given, shape(tokens, dtype=jnp.int32), shape(heads, key, value))


def all_of(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """The results of `kernels` for each case, in one process."""
    return [kernels(*configuration) for configuration in configurations]
