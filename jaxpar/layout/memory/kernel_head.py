"""What the kernel of head and loss takes of a device while the loss is differentiated."""

from __future__ import annotations

from jaxpar.memory.layer_shape import FLOAT32_BYTES
from pallas_kernels.linear_cross_entropy.head import CHUNK_BYTES
from pallas_kernels.linear_cross_entropy.kept import kept_bytes


def kernel_bytes(tokens: int, embed: int, columns: int, *, keeps: bool) -> int:
    """Temporaries besides the gradient of the table: what is kept of all logits, over which their gradients are written,
    or the gradients of a chunk; and the sum of the gradient of x, in float32."""
    logits = kept_bytes(tokens, columns) if keeps else min(CHUNK_BYTES, 2 * tokens * columns)
    return logits + FLOAT32_BYTES * tokens * embed
