"""cuDNN's attention over packed documents by their offsets, which JAX has only in private functions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.attention_cases import Case
from pallas_kernels.device import target

NAME = "cudnn, packed"
_MODULE = "jax._src.cudnn.fused_attention_stablehlo"


def refusal() -> str | None:
    """Why it cannot be timed here; None if it can."""
    platform, capability, *_ = target()
    if platform != "gpu":
        return f"it needs an NVIDIA GPU, and the platform is {platform}"
    if capability is None or capability < 9.0:
        return f"its packed layout needs compute capability 9.0 (Hopper), and the GPU has {capability or 'none'}"
    try:
        inside = import_module(_MODULE)
    except ImportError:
        return f"this jax has no {_MODULE}"
    missing = [name for name in ("dot_product_attention", "MaskType") if not hasattr(inside, name)]
    return f"{_MODULE} of this jax has no {missing[0]}" if missing else None


def attend(case: Case) -> Callable[..., Any]:
    """(q, k, v) -> the output of a packed causal case."""
    segments = case.segments()
    assert segments is not None and case.causal, f"{case.name} has no documents, or is not causal"
    inside: Any = import_module(_MODULE)
    lengths, offsets = (jnp.asarray(x) for x in documents(segments))
    return lambda q, k, v: inside.dot_product_attention(
        q, k, v, q_seqlen=lengths, kv_seqlen=lengths, q_offsets=offsets, kv_offsets=offsets, scale=case.width**-0.5,
        mask_type=inside.MaskType.PADDING_CAUSAL, sliding_window_length=case.window,
    )  # fmt: skip


def documents(segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Length [batch, most] and first place [batch, most + 1] of each document; -1 where a row has no more."""
    starts = [np.flatnonzero(np.diff(row, prepend=-1)) for row in segments]
    most = max(2, *map(len, starts))  # a single document would be treated as a row that is not packed
    lengths, offsets = (np.full((len(segments), most + more), -1, np.int32) for more in (0, 1))
    for row, first in enumerate(starts):
        lengths[row, : len(first)] = np.diff(first, append=segments.shape[1])
        offsets[row, : len(first)] = first
    return lengths, offsets
