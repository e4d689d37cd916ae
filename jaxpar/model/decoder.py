"""The decoder: its weights as one NNX module, and the three parts of a pipeline stage."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.counting import rotary_dim
from jaxpar.config.kinds import kind_model
from jaxpar.config.plan import UNTILED, LayerLayout, Plan
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.layers.block import Attend, Context
from jaxpar.layers.context import TokenContext, attention_tokens
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layers.declaration.columns import side_columns
from jaxpar.layers.declaration.weights import specs_of, with_weights
from jaxpar.layers.inputs.input import input_class
from jaxpar.layers.layer import PLAIN_OPS, DecoderLayer
from jaxpar.layers.norm import final_norm
from jaxpar.layers.ops.plain import Ops
from jaxpar.layers.rope import frequencies, rotary_magnitude, rotary_tables
from jaxpar.mesh.axes import AXES, assert_varies_over, vary
from jaxpar.mesh.collectives import gather_context, gather_sequence
from jaxpar.mesh.layer_order import LAYERS, LayerOrder
from jaxpar.mesh.parameters import Arrays, Nested, ParamSpec, Specs, Weights, map_specs
from jaxpar.mesh.placements import Placements
from jaxpar.model.embedding import Embedding
from jaxpar.model.gathered_chunks import GatheredChunks, fetched_placements
from jaxpar.model.head import Head, bound_logits, head_operands, head_part, project, vocab_axes
from jaxpar.model.loop.layer_loop import LayerLoop
from jaxpar.model.loop.layer_program import LayerProgram
from jaxpar.model.loop.layer_stack import Keep, LayerStack
from jaxpar.model.programs import ops_of, split_backward_weights, wide_matrices
from jaxpar.model.tiled_loss import HeadLoss, TokenLosses, tiled_choices, tiled_scores
from jaxpar.runtime.batch import CARRIED, SEED, Field, union
from jaxpar.runtime.objective import Objective
from jaxpar.runtime.observed import Maxima
from jaxpar.runtime.passes import Output
from jaxpar.runtime.records import Records, empty_records
from jaxpar.runtime.taps import Tap
from jaxpar.stores.sharded import Sharded

type Batch = dict[str, Any]
"""One rank's part of a microbatch: its fields (`jaxpar.runtime.batch`), and in training also `SEED`, a scalar, and
`CARRIED`, the same in all microbatches."""


class Decoder(nnx.Module):
    """All modules of the decoder outside its layers, one of each."""

    def __init__(self, config: Config):
        self.embedding = input_class(config.model)(config.model)
        self.final_norm = final_norm(config.model)
        if not config.model.tied:
            self.head = Head(config.model)


def decoder_specs(config: Config, order: LayerOrder) -> Specs:
    """The `ParamSpec` of every weight, layers stacked: what weights, placements and checkpoints are made from.

    Below `layers` is a tree for each kind.
    """

    def stacked(kind: str, rows: int) -> Nested[ParamSpec]:
        return map_specs(lambda spec: spec.stacked(rows), layer_specs(layer_of_kind(config, kind), config))

    specs = adaptation_of(config).specs(specs_of(Decoder(config)))
    return specs | {LAYERS: {kind: stacked(kind, stack.rows) for kind, stack in order.stacks.items()}}


def layer_of_kind(
    config: Config,
    kind: str,
    layout: LayerLayout = UNTILED,
    ops: Ops = PLAIN_OPS,
) -> DecoderLayer:
    """The prototype of the layers of a kind."""
    of_kind = replace(config, model=kind_model(config.model, kind))
    return DecoderLayer(of_kind, layout, ops, side_columns(config.model, kind))


def layer_specs(layer: DecoderLayer, config: Config) -> Nested[ParamSpec]:
    """The specs of a layer."""
    return adaptation_of(config).specs(specs_of(layer))


@dataclass(frozen=True, eq=False, kw_only=True)
class DecoderStages:
    """The decoder as functions of weights in storage placement, to run inside the step's `shard_map`.

    A pipeline stage is some of `embed`, a chunk of `loop` and `loss`; with one stage it is all three.
    """

    config: Config
    plan: Plan
    placements: Placements
    attend: Mapping[str, Attend]
    """The attention of each kind of layers."""
    keeps: Mapping[str, tuple[Keep, ...]]
    """The values that the layers of each kind in a chunk save between forward and backward."""
    train: bool
    """Whether dropout is on."""
    order: LayerOrder
    """The order of the layers in the stacks."""
    split_backward: bool
    """Whether the gradients of the layers' matrices are computed by a later action."""
    store: type[Sharded]
    """The store of the layers' weights in a step."""
    gathers_before: int | None
    """The index of the block of a layer before whose products the next mixer's weights must have arrived, if any."""
    objective: Objective

    @property
    def model(self) -> ModelConfig:
        """The `model` section of the configuration."""
        return self.config.model

    def token_context(self, batch: Batch, length: int | None = None) -> dict[str, TokenContext]:
        """The tokens of `batch` as layers of each kind need them.

        Args:
            batch: a microbatch.
            length: the most tokens that a row will have; by default those of the rows of `batch`.
        """
        rows = batch["positions"].shape[1] * lax.axis_size("context") if length is None else length
        segments, indices = vary(batch["segments"]), vary(batch["indices"])
        row = gather_context(segments), gather_context(indices)
        plain = vary(TokenContext(segments, indices, *row, batch["examples"], None, None))
        if CARRIED in batch:
            plain = plain._replace(carried=vary(batch[CARRIED]))
        if SEED in batch:
            plain = plain._replace(seed=vary(batch[SEED]))
        tables: dict[tuple[bytes, float], tuple[jax.Array, jax.Array]] = {}
        contexts = {}
        for kind in self.order.stacks:
            model, declared = kind_model(self.model, kind), self.fields[kind]
            fields = {field.name: vary(batch[field.name]) for field in declared if field.name in batch}
            contexts[kind] = attention_tokens(plain._replace(fields=fields), batch["positions"], model)
            if model.position == "rope":
                angles, magnitude = frequencies(model, rotary_dim(model), rows), rotary_magnitude(model)
                key = angles.tobytes(), magnitude
                if key not in tables:
                    tables[key] = vary(rotary_tables(batch["positions"], angles, magnitude))
                cos, sin = tables[key]
                contexts[kind] = contexts[kind]._replace(cos=cos, sin=sin)
        return contexts

    @cached_property
    def fields(self) -> dict[str, tuple[Field, ...]]:
        """The fields that layers of each kind declare."""
        return {kind: layer_of_kind(self.config, kind).fields for kind in self.order.stacks}

    def empty_records(self, x: Float[Array, "batch part embed"]) -> Records:
        """Records of the tokens of `x` in which no layer has any."""
        return empty_records(union(*(layer_of_kind(self.config, kind).records for kind in self.order.stacks)), x)

    @property
    def vocab_axes(self) -> tuple[str, ...]:
        """Mesh axes that split the vocabulary."""
        return vocab_axes(self.placements)

    @cached_property
    def embedding(self) -> Embedding:
        """The input of the decoder."""
        return Embedding(self.model, self.placements, self.train)

    def embed(self, weights: Weights, batch: Batch) -> Float[Array, "batch part embed"]:
        """The residual stream before the first layer, of this rank's part of the sequence, in compute dtype."""
        return self.embedding(weights["embedding"], batch)

    def embed_gradients(self, weights: Weights, batch: Batch, dx: jax.Array, gradients: Weights) -> Weights:
        """`gradients` (gradient placement) of the whole model with those of `embed` added, whose cotangent is `dx`."""
        if "embedding" not in gradients:  # it is frozen
            return gradients
        return gradients | {"embedding": self.embedding.add(weights["embedding"], batch, dx, gradients["embedding"])}

    @cached_property
    def loop(self) -> LayerLoop:
        """The layers of this pipeline rank."""
        return self._loop(self.store, self.placements)

    def _loop(self, store: type[Sharded], placements: Placements) -> LayerLoop:
        stacks = {kind: self._stack(kind, store, placements) for kind in self.order.stacks}
        return LayerLoop(stacks, self.order, self.plan.layer_unroll.name, self.gathers_before)

    def _stack(self, kind: str, store: type[Sharded], placements: Placements) -> LayerStack:
        layer, placed = self.prototype(kind), self.placements.weights[LAYERS][kind]
        blocks = tuple((block.part.name, block.part.last) for block in layer.blocks)
        wide = wide_matrices(self.config, layer.blocks, layer_specs(layer, self.config), placed, self.placements)
        weights = store(kind, placements, wide)
        return LayerStack(kind, self._programs[kind], self.keeps[kind], self.order.stacks[kind], weights, blocks)

    def prototype(self, kind: str, program: Hashable = None) -> DecoderLayer:
        """A layer of a kind, as the plan has it run, with the ops of a program."""
        ops = ops_of(self.plan, program)
        return layer_of_kind(self.config, kind, self.plan.layer_of(kind), ops)

    @cached_property
    def _programs(self) -> dict[str, dict[Hashable, LayerProgram]]:
        """The programs of the layers of each kind: with plain ops, and the others of some of them."""
        keys = {kind: dict.fromkeys([None, *(keep.variant for keep in self.keeps[kind])]) for kind in self.order.stacks}
        return {kind: {key: self._program(kind, key) for key in chunk_keys} for kind, chunk_keys in keys.items()}

    def _program(self, kind: str, program: Hashable) -> LayerProgram:
        prototype = self.prototype(kind, program)
        attend = self.attend[kind]

        def apply(
            w: Arrays, x: jax.Array, layer_index: jax.Array, tokens: TokenContext, tap: Tap | None,
            zeros: Maxima | None, recorded: dict[str, jax.Array] | None,
        ) -> Output:  # fmt: skip
            context = Context(layer_index, tokens, attend, self.train, recorded=recorded)
            return with_weights(prototype, w)(x, context, tap, zeros)

        def linear(w: Arrays, name: str, x: jax.Array, layer_index: jax.Array, tokens: TokenContext) -> Any:
            return with_weights(prototype, w).linear(name, x, layer_index, tokens)

        specs = layer_specs(prototype, self.config)
        matrices = split_backward_weights(prototype.blocks, specs) if self.split_backward else None
        frozen = map_specs(lambda spec: not spec.trained, specs)
        frozen = frozen if any(jax.tree.leaves(frozen)) else None
        observes = prototype.ops.observes if self.train else 0
        return LayerProgram(apply, linear, matrices, frozen, observes, prototype.reports)

    @cached_property
    def chunks(self) -> GatheredChunks:
        """Chunks of layers that are gathered once for all microbatches."""
        return GatheredChunks(self.loop, self._loop(Sharded, fetched_placements(self.placements)), self.placements)

    def logits(self, weights: Weights, accumulators: Weights, x: jax.Array) -> Float[Array, "batch seq local_vocab"]:
        """Float32 logits of this rank's part of the vocabulary, whose padding columns are -inf, for its context part of
        the sequence.

        For inspection: in training they never exist whole.
        """
        x, table = head_operands(weights, accumulators, x, self.model, self.placements)
        return bound_logits(project(gather_sequence(x), table, self.model), self.model, self.vocab_axes)

    def loss(
        self, weights: Weights, accumulators: Weights, x: jax.Array, batch: Batch
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """This rank's sums over a microbatch: the one that is differentiated, and `loss_reports`.

        They are the same on all ranks of `vocab_axes` and differ on all others; the caller divides by the global count
        of the objective. The gradient goes to `accumulators`.
        """
        operand, table = head_operands(weights, accumulators, x, self.model, self.placements)
        trained = head_part(self.model) in accumulators
        head = HeadLoss(self.model, self.vocab_axes, self.plan.loss_tiles.name, trained)
        total, reported = self.objective.loss(TokenLosses(operand, table, head, x), batch)
        assert {*reported} == {*self.loss_reports}, f"the loss reports {[*reported]} and declares {self.loss_reports}"
        others = [axis for axis in AXES if axis not in self.vocab_axes]
        assert_varies_over(total, others, "the loss")
        return total, vary(reported, others)

    @property
    def loss_reports(self) -> tuple[str, ...]:
        """Names of what `loss` reports: `loss` and its metrics."""
        return ("loss", *self.objective.reports)

    def scores(
        self,
        weights: Weights,
        accumulators: Weights,
        x: jax.Array,
        labels: Int[Array, "batch seq"],
        *,
        tiles: int,
        temperature: float = 1.0,
    ) -> tuple[Float[Array, "batch seq"], Int[Array, "batch seq"]]:
        """The log-probability of each label, in nats, and 1 where no token is likelier, else 0; without a derivative.

        The same on all ranks of `vocab_axes`. Logits exist for one of `tiles` tiles at a time, and are divided by the
        temperature.
        """
        head = self.scoring_head(weights, accumulators, x, tiles, temperature)
        return tiled_scores(head.x, head.table, labels, head.head)

    def choices(
        self, weights: Weights, accumulators: Weights, x: jax.Array, choices: int, *, tiles: int, temperature: float
    ) -> tuple[Int[Array, "batch seq choice"], Float[Array, "batch seq choice"]]:
        """The likeliest tokens and their log-probabilities; as `scores` otherwise."""
        head = self.scoring_head(weights, accumulators, x, tiles, temperature)
        return tiled_choices(head.x, head.table, choices, head.head)

    def scoring_head(
        self, weights: Weights, accumulators: Weights, x: jax.Array, tiles: int, temperature: float
    ) -> TokenLosses:
        """The head without a loss."""
        x, table = head_operands(weights, accumulators, x, self.model, self.placements)
        return TokenLosses(x, table, HeadLoss(self.model, self.vocab_axes, tiles)).with_temperature(temperature)
