"""Masks pair by pair and attention in float64 NumPy with its derivative written out: what the kernels are held to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pallas_kernels.masks import Mask


@dataclass(frozen=True)
class Tokens:
    """What a mask decides by, for queries and keys."""

    q_indices: np.ndarray
    kv_indices: np.ndarray
    q_segments: np.ndarray
    kv_segments: np.ndarray
    prefix_lengths: np.ndarray

    @classmethod
    def whole_rows(cls, segments: np.ndarray, prefix_lengths: np.ndarray | None = None) -> Tokens:
        indices = np.tile(np.arange(segments.shape[1], dtype=np.int32), (segments.shape[0], 1))
        prefix = np.zeros(segments.shape[0], np.int32) if prefix_lengths is None else prefix_lengths
        return cls(indices, indices, segments, segments, prefix)

    def named(self) -> dict[str, np.ndarray]:
        return vars(self)

    def queries(self, part: slice | np.ndarray) -> Tokens:
        """The same keys, but only some of the queries."""
        return Tokens(
            self.q_indices[:, part], self.kv_indices, self.q_segments[:, part], self.kv_segments, self.prefix_lengths
        )


def pairs(mask: Mask, tokens: Tokens) -> np.ndarray:
    """[batch, q, k]: each pair judged by itself."""
    (batch, queries), keys = tokens.q_indices.shape, tokens.kv_indices.shape[1]
    kept = np.zeros((batch, queries, keys), bool)
    for b, i, j in np.ndindex(kept.shape):
        q, kv = int(tokens.q_indices[b, i]), int(tokens.kv_indices[b, j])
        if mask.causal and kv > q and not (mask.prefix and kv < tokens.prefix_lengths[b]):
            continue
        if mask.window is not None and (q - kv if mask.causal else abs(q - kv)) >= mask.window:
            continue
        if mask.segmented and not 0 != tokens.kv_segments[b, j] == tokens.q_segments[b, i]:
            continue
        kept[b, i, j] = True
    return kept


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    kept: np.ndarray,
    d_out: np.ndarray,
    d_lse: np.ndarray,
    softcap: float | None = None,
) -> dict[str, np.ndarray]:
    """Output, log-sum-exp, and the gradients of q, k and v for the cotangents `d_out` and `d_lse`."""
    q, k, v, d_out, d_lse = (np.asarray(x, np.float64) for x in (q, k, v, d_out, d_lse))
    kv_heads, group, scale = k.shape[2], q.shape[2] // k.shape[2], q.shape[3] ** -0.5
    k_heads, v_heads = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    raw = np.einsum("bqhd,bshd->bhqs", q, k_heads) * scale
    scores = raw if softcap is None else softcap * np.tanh(raw / softcap)
    seen = kept.any(-1)[:, None]
    peak = np.where(seen, np.where(kept[:, None], scores, -np.inf).max(-1), 0.0)
    weight = np.exp(np.where(kept[:, None], scores - peak[..., None], -np.inf))
    total = weight.sum(-1)
    p = weight / np.where(seen, total, 1.0)[..., None]
    out = np.einsum("bhqs,bshd->bqhd", p, v_heads)
    lse = np.where(seen, peak + np.log(np.where(seen, total, 1.0)), -np.inf).transpose(0, 2, 1)

    dp = np.einsum("bqhd,bshd->bhqs", d_out, v_heads)
    inner = (p * dp).sum(-1, keepdims=True)
    ds = p * (dp - inner + d_lse.transpose(0, 2, 1)[..., None])
    if softcap is not None:
        ds = ds / np.cosh(raw / softcap) ** 2
    of_group = lambda x: x.reshape(*x.shape[:2], kv_heads, group, -1).sum(3)
    return {
        "out": out,
        "lse": lse,
        "dq": np.einsum("bhqs,bshd->bqhd", ds, k_heads) * scale,
        "dk": of_group(np.einsum("bhqs,bqhd->bshd", ds, q)) * scale,
        "dv": of_group(np.einsum("bhqs,bqhd->bshd", p, d_out)),
    }


def worst(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """max|difference| / max|expected| of each entry, where expected is finite; non-finite entries must be equal."""
    errors = {}
    for name, want in expected.items():
        have, finite = np.asarray(found[name], np.float64), np.isfinite(want)
        assert np.array_equal(have[~finite], want[~finite]), f"{name}: {have[~finite]} for {want[~finite]}"
        assert np.isfinite(have[finite]).all(), f"{name} is not finite"
        difference, size = np.abs(have[finite] - want[finite]), np.abs(want[finite])
        errors[name] = float(difference.max(initial=0.0) / size.max(initial=1e-30))
    return errors
