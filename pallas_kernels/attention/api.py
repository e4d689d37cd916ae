"""`flash_attention`: attention by whichever implementation suits the device, the mask and the shapes."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.attention.request import Request
from pallas_kernels.attention.settings import MaskInputs, Settings
from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.masks import Mask

_INDICES = 2**31 - 1
"""Indices are int32, and the greatest one stands for padding."""

type Offset = int | Int[Array, ""] | Int[Array, " batch"]


def flash_attention(
    q: Float[Array, "batch queries heads width"],
    k: Float[Array, "batch keys kv_heads width"],
    v: Float[Array, "batch keys kv_heads value_width"],
    *,
    causal: bool,
    segment_ids: Int[Array, "batch seq"] | tuple[Int[Array, "batch queries"], Int[Array, "batch keys"]] | None = None,
    window: int | None = None,
    prefix: int | Int[Array, " batch"] | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    q_offset: Offset = 0,
    kv_offset: Offset = 0,
    return_lse: bool = False,
    deterministic: bool = False,
    implementation: str = "auto",
    interpret: bool = False,
) -> Any:
    """Softmax attention with gradients for q, k and v, also through the log-sum-exp.

    The log `pallas_kernels` has one line for each kind of request: which implementation ran, and why; it is a
    warning where one was named that has not been verified on such a device.

    Args:
        q: Queries, in bfloat16, float16 or float32; query head h uses KV head `h // (heads / kv_heads)`.
        k: Keys.
        v: Values; their width may differ from that of queries and keys.
        causal: A query sees no key of a later index. The index of a token is its place plus the offset.
        segment_ids: Document of each token, from 1, 0 for padding: a query sees the keys of its own document. One array
            where queries and keys are the same tokens, else one of each.
        window: A query sees itself and the `window - 1` indices before it.
        prefix: Indices from 0 that every query of the row sees, for all rows or each; lifts causality alone.
        softcap: Scores become `softcap * tanh(score / softcap)`.
        scale: Factor of the scores; None means `1 / sqrt(width)`.
        q_offset: Slot of the first query, for all rows or each.
        kv_offset: Slot of the first key.
        return_lse: Also return the log-sum-exp of the scores.
        deterministic: Results and gradients are the same bits in every run; what varies is refused.
        implementation: `auto`, `flash` (our kernels), or one of them by name: see `registry.REGISTRY`.
        interpret: Run kernels in Pallas' interpreter, for tests.

    Returns:
        The output [batch, queries, heads, value_width] in q's dtype, and with `return_lse` the log-sum-exp
        [batch, queries, heads] in float32. A query that sees no key has output 0 and log-sum-exp -inf, and its
        gradients are 0.

    Raises:
        ValueError: If shapes, dtypes or settings do not fit together, or what is named does not support them.
    """
    shapes = _shapes(q, k, v)
    _check_arrays(q, k, v, shapes)
    _check_options(causal, window, prefix, softcap, scale, shapes)
    window = None if window is None else int(window)
    q_offset, kv_offset = (int(x) if _is_integer(x) else x for x in (q_offset, kv_offset))
    mask = Mask(bool(causal), window, segment_ids is not None, prefix is not None)
    tokens = _tokens(q, k, segment_ids, prefix, (q_offset, kv_offset), shapes)
    device = INTERPRETER if interpret else target()
    request = Request(
        dtype=str(q.dtype),
        heads=q.shape[2],
        kv_heads=k.shape[2],
        width=q.shape[3],
        value_width=v.shape[3],
        mask=mask,
        batch=q.shape[0],
        queries=q.shape[1],
        keys=k.shape[1],
        softcap=softcap,
        scale=scale,
        lse=return_lse,
        full_rows=isinstance(q_offset, int) and q_offset == kv_offset and q.shape[1] == k.shape[1],
        deterministic=bool(deterministic),
        **device._asdict(),
    )
    name = REGISTRY.chosen(implementation, request).name
    settings = Settings(
        mask, q.shape[3] ** -0.5 if scale is None else scale, softcap, neighbours=True, interpret=interpret
    )
    chosen = REGISTRY[name]
    if chosen.kernels is None:
        return chosen.attend(settings, q, k, v, tokens)
    out, lse = chosen.kernels.attend(settings, q, k, v, tokens)
    return (out, lse) if return_lse else out


def _shapes(q: Any, k: Any, v: Any) -> str:
    """Shapes and dtypes of the three arrays, for messages."""
    named = {"query": q, "key": k, "value": v}
    for name, x in named.items():
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise ValueError(f"attention needs arrays [batch, tokens, heads, width], and the {name} is a {_kind(x)}")
    return f"query {q.shape}, key {k.shape} and value {v.shape}"


def _kind(x: Any) -> str:
    return type(x).__name__


def _is_integer(x: Any) -> TypeGuard[Integral]:
    return isinstance(x, Integral) and not isinstance(x, bool)


def _check_arrays(q: jax.Array, k: jax.Array, v: jax.Array, shapes: str) -> None:
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"attention needs arrays [batch, tokens, heads, width], got {shapes}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3]:
        raise ValueError(f"rows, keys or KV heads do not fit together: {shapes}")
    if 0 in (*q.shape, *k.shape, *v.shape):
        raise ValueError(f"attention of nothing: {shapes}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"queries and keys must have heads of one width, got {shapes}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads are not shared out evenly by {k.shape[2]} KV heads: {shapes}")
    dtypes = {str(x.dtype) for x in (q, k, v)}
    if len(dtypes) > 1 or not dtypes <= {"bfloat16", "float16", "float32"}:
        raise ValueError(
            f"attention is in bfloat16, float16 or float32 alike, got {', '.join(sorted(dtypes))}: {shapes}"
        )


def _check_options(
    causal: bool, window: int | None, prefix: Any, softcap: float | None, scale: float | None, shapes: str
) -> None:
    if not isinstance(causal, bool | np.bool_):
        raise ValueError(f"causal is True or False, got {causal!r}: {shapes}")
    if window is not None and (not _is_integer(window) or window < 1):
        raise ValueError(f"a window counts the token itself, so it is a whole number from 1, got {window!r}: {shapes}")
    if prefix is not None and not causal:
        raise ValueError(f"a prefix lifts causality, and attention is not causal here: {shapes}")
    if softcap is not None and not (isinstance(softcap, Real) and isfinite(softcap) and softcap > 0):
        raise ValueError(f"a soft-cap is a finite number above 0, got {softcap!r}: {shapes}")
    if scale is not None and not (isinstance(scale, Real) and isfinite(scale)):
        raise ValueError(f"a scale is a finite number, got {scale!r}: {shapes}")


def _tokens(q: jax.Array, k: jax.Array, segment_ids: Any, prefix: Any, offsets: Any, shapes: str) -> MaskInputs:
    segments: tuple = (None, None)
    if segment_ids is not None:
        segments = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
        if len(segments) != 2:
            raise ValueError(
                f"segment ids are one array, or one of queries and one of keys, got {len(segments)}: {shapes}"
            )
        for name, ids, x in zip(("query", "key"), segments, (q, k), strict=True):
            description = f"{ids.dtype} {ids.shape}" if hasattr(ids, "dtype") else f"a {_kind(ids)}"
            if not hasattr(ids, "dtype") or ids.shape != x.shape[:2] or not jnp.issubdtype(ids.dtype, jnp.integer):
                raise ValueError(
                    f"segment ids are integers, one for each {name} {x.shape[:2]}, not {description}: {shapes}"
                )
    if prefix is not None:
        prefix = _per_row(prefix, q.shape[0], "a prefix", shapes)
    q_indices, kv_indices = (_indices(offset, x, shapes) for offset, x in zip(offsets, (q, k), strict=True))
    return MaskInputs(q_indices, kv_indices, segments[0], segments[1], prefix)


def _indices(offset: Offset, x: jax.Array, shapes: str) -> Int[Array, "batch tokens"]:
    first = 0 if not isinstance(offset, int) else offset
    if first < 0 or first + x.shape[1] > _INDICES:
        raise ValueError(f"indices are from 0 to {_INDICES - 1}, got offset {first} and {x.shape[1]} tokens: {shapes}")
    return _per_row(offset, x.shape[0], "an offset", shapes)[:, None] + np.arange(x.shape[1], dtype=np.int32)


def _per_row(value: Any, rows: int, name: str, shapes: str) -> Int[Array, " batch"]:
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer) or value.shape not in ((), (rows,)):
        raise ValueError(
            f"{name} is a whole number, or one for each row ({rows}), got {value.dtype} {value.shape}: {shapes}"
        )
    return jnp.broadcast_to(value.astype(jnp.int32), (rows,))
