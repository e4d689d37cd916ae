"""Attention cases of the suite: those that are checked or timed, their arrays and their work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.in_parts import in_parts, zigzag
from pallas_kernels import flash_attention
from pallas_kernels.attention import Settings, cudnn
from pallas_kernels.attention.registry import REGISTRY
from pallas_kernels.attention.request import Request
from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.masks import Mask, allowed, visible_pairs

TOKENS = 16384
"""Tokens of a timed batch; a longer row is a batch of one."""


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
    padding: int = 0
    """Tokens at the end of each row that belong to no document, and see nothing."""
    spread: float = 1.0
    """Factor of the queries: a large one moves scores to the soft-cap."""
    ranks: int = 1
    """If above 1, so many parts of a row in zigzag order attend to each other in turn, in float32, as in a ring."""

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
        found = np.stack(rows).astype(np.int32)
        found[:, self.seq - self.padding :] = 0
        return found[:, self.indices()]

    def indices(self) -> np.ndarray:
        """The place in its row of each token [seq], in the order in which tokens lie."""
        return zigzag(self.seq, self.ranks)

    def arrays(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Query, key, value and the cotangents of output and log-sum-exp."""
        values = self.width if self.value_width is None else self.value_width
        query, key = (self.batch, self.seq, self.heads), (self.batch, self.seq, self.kv_heads)
        shapes = (*query, self.width), (*key, self.width), (*key, values), (*query, values)
        keys = jax.random.split(jax.random.key(seed), 5)
        made = [jax.random.normal(k, s, jnp.float32).astype(self.dtype) for k, s in zip(keys, shapes, strict=False)]
        made[0] = (made[0] * self.spread).astype(self.dtype)
        return *made, jax.random.normal(keys[4], query, jnp.float32)

    def request(self, *, lse: bool, interpret: bool = False) -> Request:
        """The request to a registry."""
        device = INTERPRETER if interpret else target()
        return Request(
            dtype=self.dtype, heads=self.heads, kv_heads=self.kv_heads, width=self.width,
            value_width=self.width if self.value_width is None else self.value_width, mask=self.mask, batch=self.batch,
            queries=self.seq, keys=self.seq, softcap=self.softcap, lse=lse, full_rows=self.ranks == 1,
            runs=self.ranks == 1, compares=True, **device._asdict(),
        )  # fmt: skip

    def call(self, implementation: str, *, lse: bool, interpret: bool = False) -> Callable[..., Any]:
        """(q, k, v) -> the output, with `lse` also the log-sum-exp."""
        segments = self.segments()
        prefix = None if self.prefix is None else jnp.full(self.batch, self.prefix, jnp.int32)
        if self.ranks > 1:
            kernels = REGISTRY[implementation].kernels
            assert kernels is not None and lse and prefix is None, f"{self.name}: parts are merged by their log-sum-exp"
            settings = Settings(self.mask, self.width**-0.5, self.softcap, results="float32", interpret=interpret)
            return in_parts(kernels, settings, self.ranks, self.indices(), segments)
        if implementation == "cudnn" and segments is not None:
            return self._packed_by_cudnn

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            return flash_attention(
                q, k, v, causal=self.causal, segment_ids=None if segments is None else _not_folded(segments),
                window=self.window, prefix=prefix, softcap=self.softcap, return_lse=lse,
                implementation=implementation, interpret=interpret,
            )  # fmt: skip

        return attend

    def _packed_by_cudnn(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        """As a run of jaxpar calls it: `flash_attention` does not know that tokens of a document are neighbours."""
        REGISTRY.choose("cudnn", self.request(lse=False))
        places = jnp.broadcast_to(jnp.arange(self.seq), (self.batch, self.seq))
        segments = self.segments()
        assert segments is not None, f"{self.name} has no documents"
        return cudnn.attend(
            q, k, v, mask=self.mask, q_indices=places, kv_indices=places, q_segments=_not_folded(segments)
        )

    def dense(self, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Output and log-sum-exp by the plain formula, in the arrays' dtype; 0 and -inf where a query sees nothing."""
        indices = jnp.broadcast_to(jnp.asarray(self.indices()), (self.batch, self.seq))
        segments = None if self.packed is None else jnp.asarray(self.segments())
        prefix = None if self.prefix is None else jnp.full(self.batch, self.prefix)
        kept = allowed(self.mask, indices, indices, segments, segments, prefix)[:, None]
        k, v = (jnp.repeat(x, self.heads // self.kv_heads, axis=2) for x in (k, v))
        scores = jnp.einsum("bqhd,bshd->bhqs", q, k) * self.width**-0.5
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        seen = kept.any(-1)
        scores = jnp.where(kept, scores, jnp.where(seen, -jnp.inf, 0.0)[..., None])
        lse = jax.nn.logsumexp(scores, axis=-1)
        weights = jnp.where(kept, jnp.exp(scores - lse[..., None]), 0.0)
        return jnp.einsum("bhqs,bshd->bqhd", weights, v), jnp.where(seen, lse, -jnp.inf).swapaxes(1, 2)

    def flops(self) -> float:
        """FLOPs of the forward: two matmuls over the pairs that the mask keeps. The backward has five."""
        segments = self.segments()
        prefix = None if self.prefix is None else np.full(self.batch, self.prefix)
        tokens = np.ones((self.batch, self.seq), np.int32) if segments is None else segments
        pairs = visible_pairs(self.mask, tokens, prefix)
        values = self.width if self.value_width is None else self.value_width
        return 2.0 * pairs * self.heads * (self.width + values)


def _not_folded(segments: np.ndarray) -> jax.Array:
    """Documents that the compiler does not know, as in a step: it computes nothing from them in advance."""
    return jax.lax.optimization_barrier(jnp.asarray(segments))


def _of_many_tiles(**mask: Any) -> list[Case]:
    """512 tiles of 128 queries and of 128 keys, of each width: a persistent program of 132 has three at least."""
    kind = ", ".join(mask) or "causal"
    return [
        Case(f"2048 x 2, {kind}, width {wide}", 2048, wide, batch=2, value_width=128 if wide == 192 else None, **mask)
        for wide in (64, 96, 128, 192, 256)
    ]


CHECKED = (
    Case("one token", 1, heads=2, kv_heads=2),
    Case("113, causal", 113, 64, 4, 2, batch=2),
    Case("203, full", 203, 128, 4, 4, causal=False),
    Case("1023, packed", 1023, 128, 4, 1, batch=2, packed=100),
    *_of_many_tiles(),
    *_of_many_tiles(packed=300),
    Case("2048, zigzag, in 2 parts", 2048, 128, 4, 2, batch=2, ranks=2),
    Case("2048, packed, zigzag, in 2 parts", 2048, 64, 4, 4, packed=300, padding=200, ranks=2),
    Case("1000, full, width 64", 1000, 64, 4, 4, batch=2, causal=False),
    Case("1000, full, width 96", 1000, 96, 4, 2, causal=False),
    Case("1000, packed, padding", 1000, 128, 4, 2, batch=2, packed=150, padding=201),
    Case("1024, window 200", 1024, 64, 4, 4, window=200),
    Case("1024, packed, window 64", 1024, 128, 4, 2, packed=150, window=64),
    Case("1024, soft-cap", 1024, 128, 4, 4, softcap=20.0),
    Case("1024, scores at the soft-cap", 1024, 64, 4, 4, softcap=20.0, spread=30.0),
    Case("1024, prefix", 1024, 64, 4, 2, prefix=300),
    Case("1024, float16", 1024, 128, 4, 2, dtype="float16"),
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
        of("full", 8192, 64, causal=False), of("causal", 8192, 96), of("causal", 8192, 192, value_width=128),
        of("packed, mean 1k", 16384, 256, packed=1024), of("window 1024", 16384, 256, window=1024),
    ]  # fmt: skip
    return *targets, *others
