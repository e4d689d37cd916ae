"""The Hopper attention kernels compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.attention import MaskInputs, Settings, compute_delta
from pallas_kernels.attention.mosaic import DETERMINISTIC_KERNELS, KERNELS
from pallas_kernels.masks import Mask
from tests.gpu_compile import h100s
from tests.pallas_kernels.mosaic_compile import compiled_kernels

MASKS = {
    "causal": Mask(),
    "full": Mask(causal=False),
    "packed-window": Mask(window=1024, segmented=True),
    "packed-prefix": Mask(segmented=True, prefix=True),
}


def kernels(
    width: int,
    value_width: int,
    mask: str,
    softcap: float | None = None,
    deterministic: bool = False,
    exact: bool = False,
    dtype: str = "bfloat16",
    heads: int = 8,
) -> dict[str, Any]:
    """What ptxas reports of each kernel of attention with gradients, also of its log-sum-exp, in a `shard_map` over 8.

    `exact` asks for results in float32, as a ring does, whose steps call forward and backward themselves.
    """
    mesh = Mesh(np.array(h100s("1x1x8")).reshape(4, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
    by_heads, rows = PartitionSpec("batch", None, "heads"), PartitionSpec("batch")
    settings = Settings(MASKS[mask], width**-0.5, softcap)
    chosen = DETERMINISTIC_KERNELS if deterministic else KERNELS

    def local(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> Any:
        indices = jnp.broadcast_to(jnp.arange(q.shape[1]), segments.shape)
        tokens = MaskInputs(indices, indices, segments, segments, segments[:, 0] if settings.mask.prefix else None)
        if exact:
            out, lse = chosen.forward(settings, q, k, v, tokens)
            delta = compute_delta(out, out, lse, lse)
            return out, lse, *chosen.backward(settings, q, k, v, tokens, lse, delta, out)
        (out, lse), pull = jax.vjp(lambda q, k, v: chosen.attend(settings, q, k, v, tokens), q, k, v)
        return out, lse, *pull((out, lse))

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(by_heads,) * 3 + (rows,), out_specs=by_heads)
    shape = lambda spec, dtype, *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))
    of_heads = partial(shape, by_heads, jnp.dtype(dtype), 4, 2000)
    arguments = (of_heads(heads, width), of_heads(4, width), of_heads(4, value_width), shape(rows, jnp.int32, 4, 2000))
    return compiled_kernels(mapped, *arguments)


def all_of(configurations: list[list[Any]]) -> list[dict[str, Any]]:
    """What `kernels` finds of each, in one process."""
    return [kernels(*configuration) for configuration in configurations]
