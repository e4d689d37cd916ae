"""The Hopper attention kernels compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention import MaskInputs, Settings, compute_delta
from pallas_kernels.attention.mosaic import DETERMINISTIC_KERNELS, KERNELS
from pallas_kernels.masks import Mask
from tests.pallas_kernels.mosaic_compile import compiled_kernels
from tests.pallas_kernels.over_eight import HEADS, ROWS, over_eight

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

    of_heads = (HEADS, jnp.dtype(dtype), 1, 2000)
    operands = (*of_heads, heads // 2, width), (*of_heads, 2, width), (*of_heads, 2, value_width)
    mapped, arguments = over_eight(local, *operands, (ROWS, jnp.int32, 1, 2000), heads=2, out=HEADS)
    return compiled_kernels(mapped, *arguments)
