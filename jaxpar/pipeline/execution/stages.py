"""The interface between the executor and the model."""

from __future__ import annotations

from typing import Any, Protocol

import jax
from jaxtyping import PyTree

from jaxpar.mesh.parameters import Weights

type Batch = dict[str, PyTree[jax.Array]]
"""The arrays of a batch, or of a microbatch, by name, and trees of what steps hand on."""


class Stages(Protocol):
    """The model's interface to the executor: `jaxpar.model.decoder.DecoderStages`."""

    @property
    def loop(self) -> Any:
        """The layers of this pipeline rank: a `LayerLoop`."""
        ...

    @property
    def vocab_axes(self) -> tuple[str, ...]:
        """Mesh axes that split the vocabulary."""
        ...

    @property
    def chunks(self) -> Any:
        """Chunks of layers that are gathered once for all microbatches: `GatheredChunks`."""
        ...

    def token_context(self, batch: Batch) -> Any:
        """The tokens of a microbatch as layers need them: segments, indices, rotary tables."""
        ...

    def embed(self, weights: Weights, batch: Batch) -> jax.Array:
        """The input of the first chunk for this rank's part of a microbatch, [batch part embed]."""
        ...

    def embed_gradients(self, weights: Weights, batch: Batch, dx: jax.Array, gradients: Weights) -> Weights:
        """`gradients` of the whole model with those of `embed` added, whose cotangent is `dx`."""
        ...

    def loss(
        self, weights: Weights, accumulators: Weights, x: jax.Array, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Sums over a microbatch: the objective, and `loss_reports`, in nats."""
        ...

    @property
    def loss_reports(self) -> tuple[str, ...]:
        """Names of what `loss` reports."""
        ...
