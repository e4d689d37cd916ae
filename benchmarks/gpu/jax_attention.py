"""JAX's own attention for Hopper in Pallas Mosaic GPU (`attention_mgpu`), to compare ours with."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax

from benchmarks.gpu.attention_cases import Case
from pallas_kernels.device import target

NAME = "jax mosaic"
_MODULE = "jax.experimental.pallas.ops.gpu.attention_mgpu"
_KEYS = {64: (128, 4), 128: (128, 2), 256: (64, 2)}
"""By head width, keys of a block and blocks in shared memory."""


def refusal(case: Case) -> str | None:
    """Why it cannot be timed here; None if it can."""
    platform, capability, *_ = target()
    if platform != "gpu" or capability != 9.0:
        return f"it needs compute capability 9.0 (Hopper), and this is {capability or platform}"
    if case.packed is not None or case.window is not None or case.softcap is not None or case.prefix is not None:
        return "it has no windows, documents, prefixes and soft-caps"
    if case.width not in _KEYS or case.value_width not in (None, case.width):
        return f"its heads have a width of {', '.join(map(str, _KEYS))}, not {case.width}"
    try:
        import_module(_MODULE)
    except ImportError:
        return f"this jax has no {_MODULE}"
    return None


def attend(case: Case) -> Callable[..., Any]:
    """(q, k, v) -> the output. It does not scale the scores, so queries are scaled here."""
    inside: Any = import_module(_MODULE)
    keys, blocks = _KEYS[case.width]
    config = inside.TuningConfig(
        block_q=64, block_kv=keys, max_concurrent_steps=blocks, causal=case.causal,
        block_q_dkv=64, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64,
    )  # fmt: skip

    def call(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return inside.attention((q * case.width**-0.5).astype(q.dtype), k, v, config)

    return call
