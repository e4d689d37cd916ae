"""Vectors in place of tokens: an input from outside the package, for what another model made of sounds or images.

    python -m tests.extending.vectors --config configs/quickstart.yaml \\
        --set model.input=vectors --set data.source=vectors_of_stdlib --set evaluation.sample_tokens=0

trains as `python -m jaxpar.train` does. The source's vectors are random, one for each token of the vocabulary.
"""

import sys
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpar.config.parts import DATA_SOURCES, INPUTS, DataSource
from jaxpar.config.schema import DataConfig, ModelConfig
from jaxpar.data.opened import Data
from jaxpar.data.stdlib import VOCAB, open_stdlib
from jaxpar.layers.context import sequence_part
from jaxpar.layers.declaration.part import Weights
from jaxpar.layers.inputs.input import Input
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.runtime.batch import Field

WIDTH = 24
"""Width of a vector."""


class Vectors(Input):
    """Vectors [row, token, width] of a batch, projected to the width of the residual stream."""

    fields = (Field("vectors", "float32", dims=(WIDTH,)),)

    @staticmethod
    def declare(model: ModelConfig) -> Weights:
        return Weights(projection=ParamSpec((WIDTH, model.embed), ("input", "embed"), scale=WIDTH**-0.5, decay=True))

    @staticmethod
    def flops(model: ModelConfig) -> int:
        return 2 * WIDTH * model.embed

    def __call__(self, batch: Mapping[str, jax.Array]) -> Float[Array, "batch part embed"]:
        projection = self.weight("projection")
        return jnp.einsum("bsw,we->bse", sequence_part(batch["vectors"]).astype(projection.dtype), projection)


def open_vectors(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """Python's standard library with a vector for each token."""
    table = np.random.default_rng(0).standard_normal((VOCAB, WIDTH), np.float32)
    return open_stdlib(config, vocab, seed).with_fields(lambda row: {"vectors": table[row["tokens"]]})


INPUT = "tests.extending.vectors:Vectors"
SOURCE = DataSource("tests.extending.vectors:open_vectors")

if __name__ == "__main__":
    from jaxpar.train import main

    INPUTS["vectors"], DATA_SOURCES["vectors_of_stdlib"] = INPUT, SOURCE
    sys.exit(main())
