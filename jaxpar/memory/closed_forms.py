"""Bytes that a layer keeps under each preset (Yuan et al., USENIX ATC 2024, and derived here).

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

That is with norms before the blocks. A norm after a block keeps the output of the block's last matmul in place of the
residual: as much under `none`, 2 more under `gemm_last`; sandwich norms keep 2 more under both.

The code derives them from what the parts of a layer declare; tests check it against these forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from jaxpar.memory.layer_shape import LayerShape, activation_bytes
from jaxpar.memory.remat import PRESETS, remat_map


def preset_bytes(preset: str, shape: LayerShape) -> int:
    """Bytes that a layer saves under a preset of `memory.remat`."""
    sizes = activation_bytes(shape)
    return sum(sizes[name] for name, treatment in remat_map(preset, sizes).items() if treatment == "save")


CLOSED_FORMS: Mapping[str, Callable[[LayerShape], int]] = {name: partial(preset_bytes, name) for name in PRESETS}
"""The form of each preset."""
