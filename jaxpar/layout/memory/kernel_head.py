"""Memory of a device that the kernel of head and loss takes while the loss is differentiated."""

from __future__ import annotations

from jaxpar.memory.layer_shape import FLOAT32_BYTES
from pallas_kernels.linear_cross_entropy.head import CHUNK_BYTES
from pallas_kernels.linear_cross_entropy.saved_logits import saved_bytes


def kernel_chunks(tokens: int, columns: int) -> int:
    """Chunks of the columns in which the backward recomputes logits."""
    return -(-2 * tokens * columns // CHUNK_BYTES)


def kernel_bytes(tokens: int, embed: int, columns: int, *, keeps: bool) -> int:
    """Temporaries besides the gradient of the table.

    Where logits are kept, what is kept of them, over which their gradients are written. Else, of a chunk, the gradients
    of its logits and of its columns of the table, these in float32 like the sum that is x's gradient.
    """
    if keeps:
        return saved_bytes(tokens, columns)
    chunks = kernel_chunks(tokens, columns)
    width = -(-columns // chunks)
    return 2 * tokens * width + FLOAT32_BYTES * embed * (tokens + (width if chunks > 1 else 0))
