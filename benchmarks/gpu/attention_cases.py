"""Attention that the suite asks for: what is checked, what is timed, its arrays and its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import flash_attention
from pallas_kernels.masks import Mask, allowed, kept_pairs

TOKENS = 16384
"""Of a timed batch; a longer row is alone."""


@dataclass(frozen=True)
class Case:
    """One call."""

    name: str
    seq: int
    width: int = 128
    heads: int = 16
    kv_heads: int = 16
    batch: int = 1
    causal: bool = True
    window: int | None = None
    packed: int | None = None
    """Mean tokens of a document."""
    softcap: float | None = None
    prefix: int | None = None
    value_width: int | None = None
    dtype: str = "bfloat16"

    @property
    def mask(self) -> Mask:
        return Mask(self.causal, self.window, self.packed is not None, self.prefix is not None)

    def segments(self) -> np.ndarray | None:
        """Documents [batch, seq] of exponentially distributed lengths, as packing makes them."""
        if self.packed is None:
            return None
        draw = np.random.default_rng(0)
        rows = []
        for _ in range(self.batch):
            lengths = np.maximum(draw.exponential(self.packed, 2 * self.seq // self.packed + 16), 1).astype(int)
            rows.append(np.repeat(np.arange(1, len(lengths) + 1), lengths)[: self.seq])
            rows[-1] = np.pad(rows[-1], (0, self.seq - len(rows[-1])), mode="edge")
        return np.stack(rows).astype(np.int32)

    def arrays(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Query, key, value and the cotangents of output and log-sum-exp."""
        values = self.width if self.value_width is None else self.value_width
        query, key = (self.batch, self.seq, self.heads), (self.batch, self.seq, self.kv_heads)
        shapes = (*query, self.width), (*key, self.width), (*key, values), (*query, values)
        keys = jax.random.split(jax.random.key(seed), 5)
        made = [jax.random.normal(k, s, jnp.float32).astype(self.dtype) for k, s in zip(keys, shapes, strict=False)]
        return *made, jax.random.normal(keys[4], query, jnp.float32)

    def call(self, implementation: str, *, lse: bool, interpret: bool = False) -> Callable[..., Any]:
        """(q, k, v) -> the output, with `lse` also the log-sum-exp."""
        segments = self.segments()
        prefix = None if self.prefix is None else jnp.full(self.batch, self.prefix, jnp.int32)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            return flash_attention(
                q, k, v, causal=self.causal, segment_ids=None if segments is None else jnp.asarray(segments),
                window=self.window, prefix=prefix, softcap=self.softcap, return_lse=lse,
                implementation=implementation, interpret=interpret,
            )  # fmt: skip

        return attend

    def dense(self, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Output and log-sum-exp as written on paper, in the arrays' dtype; every query sees itself."""
        slots = jnp.broadcast_to(jnp.arange(self.seq), (self.batch, self.seq))
        segments = None if self.packed is None else jnp.asarray(self.segments())
        prefix = None if self.prefix is None else jnp.full(self.batch, self.prefix)
        kept = allowed(self.mask, slots, slots, segments, segments, prefix)[:, None]
        k, v = (jnp.repeat(x, self.heads // self.kv_heads, axis=2) for x in (k, v))
        scores = jnp.einsum("bqhd,bshd->bhqs", q, k) * self.width**-0.5
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        scores = jnp.where(kept, scores, -jnp.inf)
        lse = jax.nn.logsumexp(scores, axis=-1)
        return jnp.einsum("bhqs,bshd->bqhd", jnp.exp(scores - lse[..., None]), v), lse.swapaxes(1, 2)

    def flops(self) -> float:
        """Of the forward: two matmuls over the pairs that the mask keeps. The backward has five in place of two."""
        segments = self.segments()
        prefix = None if self.prefix is None else np.full(self.batch, self.prefix)
        tokens = np.ones((self.batch, self.seq), np.int32) if segments is None else segments
        pairs = kept_pairs(self.mask, tokens, prefix)
        values = self.width if self.value_width is None else self.value_width
        return 2.0 * pairs * self.heads * (self.width + values)


CHECKED = (
    Case("one token", 1, heads=2, kv_heads=2),
    Case("113, causal", 113, 64, 4, 2, batch=2),
    Case("203, full", 203, 128, 4, 4, causal=False),
    Case("1023, packed", 1023, 128, 4, 1, batch=2, packed=100),
    Case("1024, causal", 1024, 128, 8, 1),
    Case("1024, window 200", 1024, 64, 4, 4, window=200),
    Case("1024, packed, window 64", 1024, 128, 4, 2, packed=150, window=64),
    Case("1024, soft-cap", 1024, 128, 4, 4, softcap=20.0),
    Case("1024, prefix", 1024, 64, 4, 2, prefix=300),
    Case("1024, float16", 1024, 128, 4, 2, dtype="float16"),
    Case("1024, width 96", 1024, 96, 4, 2),
    Case("1024, width 192 and 128", 1024, 192, 4, 4, value_width=128),
    Case("1024, width 256", 1024, 256, 4, 2),
    Case("4224, causal", 4224, 128, 2, 1),
    Case("4224, packed", 4224, 64, 2, 2, packed=500),
)


def timed() -> tuple[Case, ...]:
    """16k tokens a batch, the cases with targets first."""

    def of(name: str, seq: int, width: int = 128, **more: Any) -> Case:
        heads = 2048 // width
        more = {"heads": heads, "kv_heads": heads, "batch": max(TOKENS // seq, 1)} | more
        return Case(name, seq, width, **more)

    targets = [
        of("causal", 8192), of("causal", 16384), of("window 1024", 16384, window=1024),
        of("window 4096", 16384, window=4096), of("packed, mean 1k", 16384, packed=1024), of("causal", 8192, 64),
        of("causal, GQA 8:1", 8192, kv_heads=2),
    ]  # fmt: skip
    others = [
        of("full", 8192, causal=False), of("causal", 2048), of("causal", 4096), of("causal", 32768),
        of("causal", 8192, 256), of("causal", 16384, 64), of("causal", 2048, 64), of("causal", 2048, 256),
        of("packed, mean 1k", 16384, 64, packed=1024), of("window 1024", 16384, 64, window=1024),
    ]  # fmt: skip
    return *targets, *others
