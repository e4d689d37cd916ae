"""Bytes that a layer keeps under each preset, in closed form (Yuan et al., USENIX ATC 2024, and derived here).

Per layer, microbatch and GPU. S = sequence / context, b rows, h = embed, f = mlp, a query heads and k key-value heads
of width d, t = tensor, with flash attention (no scores are kept) and sequence parallelism (what lies between the blocks
is split over t too), so that everything below is divided by t. In 16 bits, with a·d = h and k = a:

| preset    | gated feed-forward                | not gated                         |
|-----------|-----------------------------------|-----------------------------------|
| none      | (16 + 8f/h)·S·b·h/t + 4·S·b·a/t   | (16 + 4f/h)·S·b·h/t + 4·S·b·a/t   |
| gemm_last | (12 + 4f/h)·S·b·h/t + 4·S·b·a/t   | (12 + 2f/h)·S·b·h/t + 4·S·b·a/t   |
| selective | (14 + 8f/h)·S·b·h/t               | (14 + 4f/h)·S·b·h/t               |
| full      | 2·S·b·h/t                         | 2·S·b·h/t                         |

Fewer key-value heads take 4·(1 - k/a)·S·b·h/t off all but `full`. Where the 16 comes from, 2 bytes each: the layer's
input, its norm, query, key, value, attention's output, the residual, its norm. Where 8f/h comes from: gate, up,
silu(gate), and their product; without a gate, up and its non-linearity: 4f/h. 4·S·b·a/t is float32, a log-sum-exp
for each query and head. GEMM-last drops the two norms (4), and silu(gate) and the product (4f/h).

That is with norms before the blocks. A norm behind a block keeps what the block's last matmul gives in place of the
residual: as much under `none`, 2 more under `gemm_last`; sandwich norms keep 2 more under both.
"""

from __future__ import annotations

from jaxpar.memory.layer_shape import FLOAT32_BYTES, LayerShape


def none_bytes(shape: LayerShape) -> int:
    """Everything that has a name: `between` 4 times, query and attention's output, key and value, hidden 4 or 2 times.

    With a·d = h and k = a in 16 bits: (16 + 8f/h)·S·b·h/t + 4·S·b·a/t.
    """
    return _sum(shape, between=_between(shape), query=2, key=2, hidden=4 if shape.gated else 2) + lse_bytes(shape)


def gemm_last_bytes(shape: LayerShape) -> int:
    """All but what elementwise work brings back: (12 + 4f/h)·S·b·h/t + 4·S·b·a/t; not gated 2f/h."""
    between = 2 if shape.norm_placement == "pre" else 3
    return _sum(shape, between=between, query=2, key=2, hidden=2 if shape.gated else 1) + lse_bytes(shape)


def selective_bytes(shape: LayerShape) -> int:
    """All but what attention itself makes, its output and log-sum-exp (Korthikanti et al. 2022): (14 + 8f/h)·S·b·h/t.

    Without flash attention the same rule drops the scores too, which is what it was made for.
    """
    return _sum(shape, between=_between(shape), query=1, key=2, hidden=4 if shape.gated else 2)


def full_bytes(shape: LayerShape) -> int:
    """The layer's input alone: 2·S·b·h/t."""
    return _sum(shape, between=1)


def lse_bytes(shape: LayerShape) -> int:
    """Attention's log-sum-exp, float32: 4·S·b·a/t."""
    return FLOAT32_BYTES * shape.tokens * shape.heads // shape.tensor


CLOSED_FORMS = {
    "none": none_bytes,
    "gemm_last": gemm_last_bytes,
    "selective": selective_bytes,
    "full": full_bytes,
}
"""The form of each preset of `memory.remat`."""


def _between(shape: LayerShape) -> int:
    return 5 if shape.norm_placement == "sandwich" else 4


def _sum(shape: LayerShape, *, between: int, query: int = 0, key: int = 0, hidden: int = 0) -> int:
    """Bytes of so many arrays [S·b/t, h], [S·b, a·d/t], [S·b, k·d/t] and [S·b, f/t]."""
    of_embed = between * shape.embed * shape.tokens // shape.tensor
    inside = query * shape.query_width + key * shape.kv_width + hidden * shape.hidden_width
    return shape.item_bytes * (of_embed + shape.tokens * inside)
