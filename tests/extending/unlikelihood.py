"""Unlikelihood of marked tokens (Welleck et al. 2019, arXiv:1908.04319): an objective from outside the package.

    python -m tests.extending.unlikelihood --config configs/quickstart.yaml \\
        --set loss.name=unlikelihood --set data.source=marked_stdlib

trains as `python -m jaxpar.train` does. A token that ends a sequence of four that its row had before is marked: the
loss makes it less likely, where it makes others likelier.
"""

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpar.config.parts import DATA_SOURCES, OBJECTIVES, DataSource, LossEntry
from jaxpar.config.schema import DataConfig
from jaxpar.data.opened import Data
from jaxpar.data.packing import Row
from jaxpar.data.stdlib import open_stdlib
from jaxpar.runtime.batch import Field
from jaxpar.runtime.objective import Head, Objective

LEAST = 1e-5
"""The smallest 1 - p of which the logarithm is taken."""
REPEATED = 4
"""Tokens of a sequence whose repetition is marked."""


class Unlikelihood(Objective):
    """The mean over tokens of -log(1 - p) where they are marked, and of -log p elsewhere."""

    fields = (*Objective.fields, Field("marked", "float32"))
    reports = ("unlikelihood",)

    def loss(self, head: Head, batch: dict[str, Any]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        marked = batch["mask"] * batch["marked"]
        likely = batch["mask"] - marked
        log_p = head.log_probabilities(batch["labels"])
        rest = jnp.maximum(-jnp.expm1(log_p), LEAST)
        unlikelihood = -(marked * jnp.log(rest)).sum()
        reports = {"loss": unlikelihood - (likely * log_p).sum(), "unlikelihood": unlikelihood}
        # The derivative of -log(1 - p) with respect to -log p is -p / (1 - p).
        weights = likely - marked * jnp.exp(log_p) / rest
        return head.cross_entropy(batch["labels"], weights)[0], reports


def marks(row: Row) -> Row:
    """The field `marked`: 1 where a label ends a sequence that the row had before, else 0."""
    text, marked, before = [*row["tokens"][:1], *row["labels"]], np.zeros(len(row["labels"]), np.float32), set()
    for end in range(REPEATED, len(text) + 1):
        sequence = tuple(text[end - REPEATED : end])
        marked[end - 2] = sequence in before
        before.add(sequence)
    return {"marked": marked}


def open_marked(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """Python's standard library with marks."""
    return open_stdlib(config, vocab, seed).with_fields(marks)


LOSS = LossEntry("tests.extending.unlikelihood:Unlikelihood")
SOURCE = DataSource("tests.extending.unlikelihood:open_marked")

if __name__ == "__main__":
    from jaxpar.train import main

    OBJECTIVES["unlikelihood"], DATA_SOURCES["marked_stdlib"] = LOSS, SOURCE
    sys.exit(main())
