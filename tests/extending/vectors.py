"""Vectors in place of tokens: an input from outside the package, for what another model made of sounds or images.

    python -m tests.extending.vectors --config configs/quickstart.yaml \\
        --set model.input=vectors --set data.source=vectors_of_stdlib --set evaluation.sample_tokens=0

trains as `python -m jaxpar.train` does. The source's vectors are random, one for each token of the vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpar.config.parts import DATA_SOURCES, INPUTS, DataSource
from jaxpar.config.schema import DataConfig, ModelConfig
from jaxpar.data.opened import Data
from jaxpar.data.packing import Row, Rows
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


class RowsOfVectors:
    """Rows with the field `vectors`."""

    def __init__(self, rows: Rows):
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def row(self, example: int) -> Row:
        """The row of an example, with the vector of each of its tokens."""
        row = self._rows.row(example)
        return row | {"vectors": self._table[row["tokens"]]}

    def shuffled(self, version: int) -> RowsOfVectors:
        """These rows in the order of another version."""
        return RowsOfVectors(self._rows.shuffled(version))

    @cached_property
    def _table(self) -> Float[np.ndarray, "vocab width"]:
        return np.random.default_rng(0).standard_normal((VOCAB, WIDTH), np.float32)


def open_vectors(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """Python's standard library with a vector for each token."""
    data = open_stdlib(config, vocab, seed)
    heldout = None if data.heldout is None else RowsOfVectors(data.heldout)
    return replace(data, train=RowsOfVectors(data.train), heldout=heldout)


INPUT = "tests.extending.vectors:Vectors"
SOURCE = DataSource("tests.extending.vectors:open_vectors")

if __name__ == "__main__":
    from jaxpar.train import main

    INPUTS["vectors"], DATA_SOURCES["vectors_of_stdlib"] = INPUT, SOURCE
    sys.exit(main())
