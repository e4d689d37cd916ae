"""What the rotation of queries and keys moves through memory, with the norms of each head before it."""

from __future__ import annotations

HEAD_NORMS = {"xla": (2.0, 6.0), "kernel": (0.0, 3.0)}
"""Times that norms of each head move queries and keys, beyond what their rotation does: forward, and backward with
their recomputation. XLA writes the norms in float32 forward, and backward makes passes of their own for the sums of
squares, the sums of rows and the gradient of the scale; a kernel of both makes one pass forward, and backward one that
computes them again and one for the derivative, which reads the input too. Counted in compiled programs
(docs/kernels.md, norms of queries and keys), without what is copied to kernels from a product or a stack."""


def rotation_passes(fused: bool, norms: str | None, back: bool) -> float:
    """Bytes that are moved for each number of 16 bits of queries and keys, forward or `back`.

    The rotation reads and writes each number once; unfused, five times. `norms` is what norms each head (`xla` or a
    kernel, as in a plan), None where nothing does.
    """
    normed = 0.0 if norms is None else HEAD_NORMS["xla" if norms == "xla" else "kernel"][back]
    return 2.0 * (2 * (1 if fused else 5) + normed)
