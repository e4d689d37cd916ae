"""Linear attention's kernels compiled for H100s that are not here; child only (see `tests.gpu_compile.in_child`)."""

from typing import Any

import jax

from jaxpar.layers.linear_attention.recurrence import scan
from tests.pallas_kernels.linear_attention.linear64 import Streams
from tests.pallas_kernels.mosaic_compile import compiled_kernels
from tests.pallas_kernels.over_eight import ROWS, over_eight


def kernels(tokens: int, heads: int, key: int, value: int, delta: bool, by_key: bool) -> dict[str, Any]:
    """Outputs and gradients of a row on each of 8 GPUs, in a checked `shard_map`."""

    def local(documents: jax.Array, state: jax.Array, *streams: jax.Array) -> Any:
        run = lambda streams, state: scan(streams, documents, state, documents[:, 0], backend="mosaic")
        out, pull = jax.vjp(run, Streams(*streams, *(() if delta else (None,))), state)
        return out, pull(out)

    of_tokens = lambda *sizes, dtype="bfloat16": (ROWS, dtype, 1, tokens, heads, *sizes)
    streams = [of_tokens(key), of_tokens(key), of_tokens(value), of_tokens(key if by_key else 1, dtype="float32")]
    streams += [of_tokens(dtype="float32")] if delta else []
    operands = (ROWS, "int32", 1, tokens), (ROWS, "float32", 1, heads, key, value), *streams
    mapped, arguments = over_eight(local, *operands)
    return compiled_kernels(mapped, *arguments)
