"""Cross-entropy of the next token."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from jaxpar.runtime.objective import Head, Objective


class CrossEntropy(Objective):
    """The negative log-likelihood of each token that the mask counts, with z-loss."""

    def loss(self, head: Head, batch: dict[str, jax.Array]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The sums over tokens: with z-loss, and without."""
        total, likelihood = head.cross_entropy(batch["labels"], batch["mask"])
        return total, {"loss": likelihood}
