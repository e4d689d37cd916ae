"""The interface between the executor and the model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

import jax
from jaxtyping import PyTree

from jaxpar.mesh.layer_order import Chunk, Index
from jaxpar.mesh.parameters import Arrays, Weights
from jaxpar.runtime.passes import Accumulator, Cotangents, Saved, Side, Stream, Tokens, Valid

type Batch = dict[str, PyTree[jax.Array]]
"""The arrays of a batch, or of a microbatch, by name, and trees of what steps hand on."""


type Stashes = Mapping[tuple[str, int], PyTree]
"""Buffers of what layers keep between forward and backward, opaque to the executor."""


class Layers(Protocol):
    """The layers of a pipeline rank: `jaxpar.model.loop.layer_loop.LayerLoop`."""

    def stash(self, weights: Arrays, x: Stream, tokens: Tokens, slots: int) -> Stashes:
        """Buffers for `slots` passes through a chunk."""
        ...

    def side(self, weights: Arrays, x: Stream, tokens: Tokens, slots: int) -> Side:
        """Zeros for further results of passes."""
        ...

    def input_of(self, saved: Saved, chunk: Index) -> Stream:
        """The saved input of a chunk."""
        ...

    def run(self, weights: Chunk, x: Stream, tokens: Tokens) -> Stream:
        """Forward through a chunk, saving nothing."""
        ...

    def forward(
        self, weights: Chunk, x: Stream, tokens: Tokens, saved: Saved, side: Side, valid: Valid
    ) -> tuple[Stream, Stashes, Side]:
        """Forward through a chunk: (x, stashes, side)."""
        ...

    def backward(
        self, weights: Chunk, cotangents: Cotangents, tokens: Tokens, saved: Saved, into: Accumulator, side: Side
    ) -> tuple[Stream, Arrays, Side]:
        """Backward through a chunk: (dx, gradients, side)."""
        ...

    def weight_gradients(self, weights: Arrays, tokens: Tokens, into: Accumulator, side: Side) -> Arrays:
        """Gradients with those of a chunk's matrices added, which a split backward left."""
        ...


class Chunks(Protocol):
    """Chunks that are gathered once for all microbatches: `jaxpar.model.gathered_chunks.GatheredChunks`."""

    @property
    def loop(self) -> Layers:
        """The layers, whose weights are gathered."""
        ...

    def zeros(self, layers: Arrays, slots: int, *, gradients: bool = False) -> Arrays:
        """Zeros for `slots` chunks, or for their gradients."""
        ...

    def load(self, chunks: Arrays, slot: int, layers: Arrays, chunk: int, after: jax.Array) -> Arrays:
        """`chunks` with a chunk of `layers` gathered into `slot`, not before `after` is computed."""
        ...

    def release(self, chunks: Arrays, slot: int, gradients: Arrays, chunk: int) -> tuple[Arrays, Arrays]:
        """(chunks emptied, `gradients` with those of the chunk in `slot`)."""
        ...


class Stages(Protocol):
    """The model's interface to the executor: `jaxpar.model.decoder.DecoderStages`."""

    @cached_property
    def loop(self) -> Layers:
        """The layers of this pipeline rank."""
        ...

    @property
    def vocab_axes(self) -> tuple[str, ...]:
        """Mesh axes that split the vocabulary."""
        ...

    @cached_property
    def chunks(self) -> Chunks:
        """Chunks of layers that are gathered once for all microbatches."""
        ...

    def token_context(self, batch: Batch) -> Tokens:
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
