"""What the rotation of queries and keys moves through memory, with the norms of each head before it."""

from __future__ import annotations

HEAD_NORMS = (2.0, 6.0)
"""Times that norms of each head move queries and keys, beyond what their rotation does: forward, and backward with
their recomputation. XLA writes the norms in float32 forward, and backward makes passes of their own for the sums of
squares, the sums of rows and the gradient of the scale. Counted in compiled programs (docs/kernels.md, norms of queries
and keys)."""


def rotation_passes(fused: bool, normed: bool, back: bool) -> float:
    """Bytes that are moved for each number of 16 bits of queries and keys, forward or `back`, with the norm of each
    head where they are `normed`.

    The rotation reads and writes each number once; unfused, five times.
    """
    return 2.0 * (2 * (1 if fused else 5) + (HEAD_NORMS[back] if normed else 0.0))
