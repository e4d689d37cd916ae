"""What `dense64` says, for rows of thousands of tokens: masks of whole arrays, and attention a block of queries at a
time."""

import numpy as np

from pallas_kernels.masks import Mask
from tests.pallas_kernels.dense64 import Tokens


def pairs(mask: Mask, tokens: Tokens, queries: slice = slice(None)) -> np.ndarray:
    """[batch, q, k]: the kept pairs of some queries."""
    q, kv = tokens.q_indices[:, queries, None].astype(np.int64), tokens.kv_indices[:, None, :].astype(np.int64)
    kept = np.ones(np.broadcast_shapes(q.shape, kv.shape), bool)
    if mask.causal:
        kept = kv <= q
        if mask.prefix:
            kept |= kv < tokens.prefix_lengths[:, None, None]
    if mask.window is not None:
        kept &= q - kv < mask.window
    if mask.segmented:
        kept &= tokens.q_segments[:, queries, None] == tokens.kv_segments[:, None, :]
        kept &= tokens.kv_segments[:, None, :] != 0
    return kept


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    d_out: np.ndarray,
    d_lse: np.ndarray,
    mask: Mask,
    tokens: Tokens,
    block: int = 512,
) -> dict[str, np.ndarray]:
    """Output, log-sum-exp and gradients of heads that have keys of their own, in float64."""
    q, k, v, d_out, d_lse = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v, d_out, d_lse))
    scale, dk, dv = q.shape[-1] ** -0.5, np.zeros_like(k), np.zeros_like(v)
    outs, lses, dqs = [], [], []
    for start in range(0, q.shape[2], block):
        part = slice(start, start + block)
        kept = pairs(mask, tokens, part)[:, None]
        scores = np.where(kept, q[:, :, part] @ k.swapaxes(2, 3) * scale, -np.inf)
        peak = scores.max(-1, keepdims=True)
        peak[np.isneginf(peak)] = 0.0
        weight = np.exp(scores - peak)
        total = weight.sum(-1, keepdims=True)
        p = weight / np.where(total == 0.0, 1.0, total)
        with np.errstate(divide="ignore"):
            lses.append((peak + np.log(total))[..., 0])
        outs.append(p @ v)
        dp = d_out[:, :, part] @ v.swapaxes(2, 3)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True) + d_lse[:, :, part, None])
        dqs.append(ds @ k * scale)
        dk += ds.swapaxes(2, 3) @ q[:, :, part] * scale
        dv += p.swapaxes(2, 3) @ d_out[:, :, part]
    out, dq, lse = (np.concatenate(x, 2) for x in (outs, dqs, lses))
    found = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    return {name: x.swapaxes(1, 2) for name, x in found.items()}
