"""The decoder: its weights as one NNX module, and the three parts that a pipeline stage is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxpar.config.counting import head_dim
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.mesh.axes import AXES, assert_varies_over, vary
from jaxpar.mesh.materialize import materialize
from jaxpar.mesh.parameters import Tree, map_specs
from jaxpar.mesh.placements import Placements
from jaxpar.model.attention import Attend
from jaxpar.model.context import TokenContext, sequence_part
from jaxpar.model.dropout import dropout
from jaxpar.model.embedding import Embedding, Head, embed_tokens, vocabulary_logits
from jaxpar.model.layer import DecoderLayer
from jaxpar.model.layer_loop import LayerLoop, Policy, run_layers
from jaxpar.model.loss import vocabulary_cross_entropy
from jaxpar.model.norm import NORMS
from jaxpar.model.rope import rotary_tables
from jaxpar.model.weights import specs_of, with_weights

type Batch = dict[str, jax.Array]
"""One rank's part of a microbatch: tokens, labels, mask, segments, positions, slots [batch, seq]; examples [batch]."""


class Decoder(nnx.Module):
    """All modules of the decoder, one of each: `layers` is the prototype of the stacked layers."""

    def __init__(self, config: Config):
        self.embedding = Embedding(config.model)
        self.layers = DecoderLayer(config)
        self.final_norm = NORMS[config.model.norm](config.model)
        if not config.model.tied:
            self.head = Head(config.model)


def decoder_specs(config: Config) -> Tree:
    """The `ParamSpec` of every weight, layers stacked: what weights, placements and checkpoints are made from."""
    specs = specs_of(Decoder(config))
    specs["layers"] = map_specs(lambda spec: spec.stacked(config.model.layers), specs["layers"])
    return specs


@dataclass(frozen=True, eq=False)
class DecoderStages:
    """The decoder as functions of (weights in storage placement, sinks), to run inside the step's `shard_map`.

    A pipeline stage is some of `embed`, `run_layers` and `loss`; with one stage it is all three.
    """

    config: Config
    placements: Placements
    attend: Attend
    policy: Policy | None
    train: bool
    """Whether dropout is on."""

    @property
    def model(self) -> ModelConfig:
        """The model's configuration."""
        return self.config.model

    def token_context(self, batch: Batch) -> TokenContext:
        """What layers need to know about the tokens of `batch`."""
        cos = sin = None
        if self.model.position == "rope":
            cos, sin = rotary_tables(batch["positions"], self.model, head_dim(self.model))
        return vary(TokenContext(batch["segments"], batch["slots"], batch["examples"], cos, sin))

    def embed(self, weights: Tree, sinks: Tree, batch: Batch) -> Float[Array, "batch part embed"]:
        """Token embeddings of this rank's part of the sequence, in compute dtype."""
        part = "embedding"
        x = embed_tokens(self.model, self.placements, weights[part], sinks[part], batch["tokens"], batch["positions"])
        if self.train:
            slots, seed = sequence_part(batch["slots"]), self.config.run.seed
            x = dropout(x, self.model.dropout, seed=seed, site=0, examples=batch["examples"], slots=slots)
        return vary(x)

    def run_layers(self, weights: Tree, sinks: Tree, x: jax.Array, batch: Batch) -> Float[Array, "batch part embed"]:
        """The layers of this pipeline rank."""
        prototype = DecoderLayer(self.config)

        def apply(w: Tree, x: jax.Array, index: jax.Array, tokens: TokenContext) -> jax.Array:
            return with_weights(prototype, w)(x, index, tokens, self.attend, self.train)

        loop = LayerLoop(apply, self.placements, self.policy)
        return run_layers(loop, weights["layers"], sinks["layers"], x, self.token_context(batch))

    def logits(self, weights: Tree, sinks: Tree, x: jax.Array) -> Float[Array, "batch seq local_vocab"]:
        """Float32 logits of this rank's part of the vocabulary, for its context part of the sequence."""
        norm = materialize(weights["final_norm"], sinks["final_norm"], self.placements, part="final_norm")
        x = with_weights(NORMS[self.model.norm](self.model), norm)(x)
        part = "embedding" if self.model.tied else "head"
        table: Any = materialize(weights[part], sinks[part], self.placements, part=part)
        return vocabulary_logits(x, table["tokens"].T if self.model.tied else table["weight"], self.model)

    def loss(self, weights: Tree, sinks: Tree, x: jax.Array, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """This rank's sums over unmasked tokens: the objective (with z-loss) and the negative log-likelihood, in nats.

        Both are the same on all tensor ranks and differ on all others; the caller divides by the global token count.
        """
        nll, lse = vocabulary_cross_entropy(self.logits(weights, sinks, x), batch["labels"])
        total = jnp.sum(batch["mask"] * nll)
        objective = total
        if self.model.z_loss > 0:
            objective = total + self.model.z_loss * jnp.sum(batch["mask"] * lse**2)
        assert_varies_over(objective, [axis for axis in AXES if axis != "tensor"], "the loss")
        return objective, total

    def objective(self, weights: Tree, sinks: Tree, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The whole model as one stage: `loss` of `run_layers` of `embed`."""
        x = self.run_layers(weights, sinks, self.embed(weights, sinks, batch), batch)
        return self.loss(weights, sinks, x, batch)
