"""The interface between the executor and the model."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from jaxpar.mesh.parameters import Arrays, Weights

type Batch = dict[str, Any]
"""The arrays of a batch, or of a microbatch, by name."""


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

    def over_held_chunks(self) -> Any:
        """`loop`, over chunks that are gathered whole."""
        ...

    def no_chunks(self, weights: Weights, slots: int, *, gradients: bool = False) -> Arrays:
        """Zeros for `slots` chunks of layers gathered whole, or for their gradients."""
        ...

    def hold(self, held: Any, slot: int, weights: Weights, chunk: int, after: jax.Array) -> Arrays:
        """`held` with a chunk of the layers gathered into `slot`, not before `after` is computed."""
        ...

    def release(self, held: Any, slot: int, gradients: Weights, chunk: int) -> tuple[Arrays, Weights]:
        """Add the gradients of the chunk held in `slot` to those of the whole model: (held emptied, gradients)."""
        ...

    def token_context(self, batch: Batch) -> Any:
        """What layers need to know about the tokens of a microbatch: segments, indices, rotary tables."""
        ...

    def embed(self, weights: Weights, batch: Batch) -> jax.Array:
        """Token embeddings of this rank's part of a microbatch, [batch part embed]."""
        ...

    def embed_gradients(self, weights: Weights, batch: Batch, dx: jax.Array, gradients: Weights) -> Weights:
        """`gradients` of the whole model with those of `embed` added, whose cotangent is `dx`."""
        ...

    def completed(self, gradients: Weights, *, embedded: bool) -> Weights:
        """Complete gradients, summed over the ranks over which they travel early: of the embedding, or of the parts
        that only the loss uses."""
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
