"""Experts in place of a layer's feed-forward: routed ones, of which each token uses some, and shared ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import ExpertLayout
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Block, Context
from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.layers.declaration.part import Part
from jaxpar.layers.dropout import draws
from jaxpar.layers.experts import clusters
from jaxpar.layers.experts.assignment import within_capacity
from jaxpar.layers.experts.clusters import clustered
from jaxpar.layers.experts.declaration import IN, OUT, SHARED_ROUTER, declare
from jaxpar.layers.experts.exchange import EXCHANGES
from jaxpar.layers.experts.rounds import Operands, exchanged, stacked_lists
from jaxpar.layers.experts.routers import ROUTERS, entropy, options_of
from jaxpar.layers.experts.routing import (
    NO_EXPERT,
    STREAM_AXES,
    RouterState,
    Routing,
    Sums,
    TokenOrder,
    logits_of,
    router_logits,
    sequence_loss,
    share,
    z_loss,
)
from jaxpar.layers.experts.rows import expert_of_row, rows_of_experts
from jaxpar.layers.feed_forward.base import FeedForward
from jaxpar.layers.ops.plain import Grouped, Ops
from jaxpar.mesh.collectives import gather_sequence, reduce_sum
from jaxpar.runtime.batch import TOKENS, UPDATES, Field
from jaxpar.runtime.passes import AUXILIARY_LOSS, Output
from pallas_kernels.varying import vary_alike

ROUTED_TOKENS, LOAD, RANK_LOAD, ENTROPY, DROPPED, OVERFLOWS = (
    f"experts.{name}" for name in ("tokens", "load", "rank_load", "entropy", "dropped", "overflows")
)
"""Sums over tokens and layers: of 1; of the load of the fullest expert, relative to the mean; of that of the fullest
expert rank; of the entropy of the routing; of assignments that no expert has computed; of 1 where an exchange took more
than one round."""

NOISE_SITE = 1 << 20
"""The site of dropout for which the noise of a router is drawn, above all sites of dropout."""

ROUTING = "routing"
"""The field with the experts of each token in each layer of the model, in place of those that the routers would choose:
[row, token, layer, choice], and `NO_EXPERT` where there is none. Layers without experts have a place too."""


type Rows = Float[Array, "tokens embed"]


class Experts(Block):
    """`sum_i w_i expert_i(x) + shared(x)` over the experts i that the router chooses for a token."""

    wide_gradients = True
    declare = staticmethod(declare)

    def __init__(
        self,
        model: ModelConfig,
        feed_forward: type[FeedForward],
        part: Part | None = None,
        layout: ExpertLayout | None = None,
    ):
        assert model.experts is not None, "a model with experts"
        super().__init__(part or declare(model, feed_forward))
        self.experts, self.layout = model.experts, layout or ExpertLayout()
        names = (AUXILIARY_LOSS, ROUTED_TOKENS, LOAD, RANK_LOAD, ENTROPY, DROPPED, OVERFLOWS)
        of_clusters = clusters.REPORTS if model.experts.clusters else ()
        self.reports = (*names, *of_clusters, *(f"{LOAD}.{layer}" for layer in range(model.layers)))
        self.feed_forward, self.layers = feed_forward, model.layers
        self.kind, self.options = ROUTERS[model.experts.router], options_of(model.experts)
        self.choices = model.experts.count if self.kind.all_experts else model.experts.per_token
        limits = (NO_EXPERT, model.experts.count - 1)
        self.records = (Field(ROUTING, dims=(model.layers, self.choices), limits=limits, optional=True),)
        self.fields = (*self.records, *([TOKENS] if self.kind.ids else []), *([UPDATES] if self.kind.anneals else []))

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """The sum, and the report. Tokens that pad rows are sent to no expert and are in no statistic."""
        tokens = context.tokens
        flat, valid = x.reshape(-1, x.shape[-1]), sequence_part(tokens.segments).ravel() > 0
        of_router, routed = self.entering(flat, context)
        logits = router_logits(self, of_router, self.kind)
        routing = self.kind.route(logits, self._state(of_router, valid, context), self.experts, self.options)
        routing = self.weighed(routing)
        if context.recorded is not None:
            context.recorded[ROUTING] = routing.indices.reshape(*x.shape[:2], -1)
        report = self._report(logits, routing, valid.astype(jnp.float32).reshape(x.shape[:2]))
        sent = self._within_capacity(routing, valid, tokens) if context.train else routing
        shared = None
        if self.experts.shared:
            shared = lambda flat: self._shared(flat.reshape(x.shape), ops).reshape(flat.shape)
        apart = shared if self.experts.norms else None
        inside = shared if apart is None else None
        if self.experts.clusters and context.train:
            send, slices = partial(self._exchanged, ops), self.layout.slices.name
            y, handled, rounds, more = clustered(send, self.experts, slices, context.index, routed, sent, valid)
            y = y if inside is None else y + inside(flat)
            report |= more
        else:
            y, handled, rounds = self._exchanged(ops, routed, sent, valid, self.experts, inside)
        y = y if apart is None else self.joined(y, apart(flat))
        chosen = jnp.sum(valid[:, None] & (routing.indices != NO_EXPERT)).astype(jnp.float32)
        report |= {DROPPED: chosen - handled, OVERFLOWS: report[ROUTED_TOKENS] * (rounds > 1)}
        loads = {f"{LOAD}.{one}": jnp.where(context.index == one, report[LOAD], 0.0) for one in range(self.layers)}
        return y.reshape(x.shape), report | loads

    # ---- hooks

    def entering(self, x: Rows, context: Context) -> tuple[Rows, Rows]:
        """The inputs of the router and of the routed experts, from that of the block."""
        del context
        return x, x

    def weighed(self, routing: Routing) -> Routing:
        """The choices of the router with the weights that count."""
        return routing

    def joined(self, routed: Rows, shared: Rows) -> Rows:
        """The output, from that of the routed experts and that of the shared ones, where they are not added before."""
        return routed + shared

    # ---- routing

    def _state(self, x: Float[Array, "tokens embed"], valid: Bool[Array, " tokens"], context: Context) -> RouterState:
        kind, tokens, train = self.kind, context.tokens, context.train
        replay, drawn = tokens.fields.get(ROUTING), None
        if replay is not None:
            replay = sequence_part(lax.dynamic_index_in_dim(replay, context.index, axis=2, keepdims=False))
            replay = replay[..., : self.choices].reshape(-1, self.choices)
        if kind.draw is not None and train:
            assert tokens.seed is not None, "training has a seed"
            site, indices = NOISE_SITE + context.index, sequence_part(tokens.indices)
            drawn = draws(kind.draw, self.experts.count, tokens.seed, site, tokens.examples, indices)
            drawn = drawn.reshape(-1, self.experts.count)
        return RouterState(
            bias=lax.stop_gradient(self.weight("bias").astype(jnp.float32)) if kind.bias else None,
            noise=logits_of(self, x, "noise") if kind.noise else None,
            drawn=drawn,
            ids=sequence_part(tokens.fields[TOKENS.name]).ravel() if kind.ids else None,
            train=train,
            valid=valid,
            order=TokenOrder.from_tokens(tokens) if kind.ordered and replay is None else None,
            replay=replay,
            step=tokens.fields[UPDATES.name].astype(jnp.float32) if kind.anneals and train else None,
        )

    def _within_capacity(self, routing: Routing, valid: Bool[Array, " tokens"], tokens: TokenContext) -> Routing:
        """`routing` without the assignments beyond the capacity of an expert, of all ranks' tokens in order."""
        factor = self.experts.capacity_factor
        if factor is None:
            return routing
        order = TokenOrder.from_tokens(tokens)
        inside = within_capacity(order.gather(routing.indices), order.gather(valid), self.experts.count, factor)
        return routing._replace(indices=jnp.where(order.local(inside), routing.indices, NO_EXPERT))

    def _report(
        self, logits: jax.Array, routing: Routing, valid: Float[Array, "batch part"]
    ) -> dict[str, Float[Array, ""]]:
        """This rank's share of the losses and of the statistics over the microbatch. `valid` is 1 for tokens that do
        not pad a row."""
        of_rows, valid = valid, valid.ravel()
        chosen = routing.indices[:, :, None] == jnp.arange(self.experts.count)
        of_expert = jnp.sum(jnp.where(chosen, valid[:, None, None], 0.0), axis=(0, 1))
        statistics = {name: valid @ values for name, values in routing.statistics.items()}
        local_sums = Sums(valid.sum(), lax.stop_gradient(of_expert), statistics)
        packed, unpack = ravel_pytree(local_sums)
        global_sums, ranks = unpack(reduce_sum(lax.stop_gradient(packed), STREAM_AXES)), lax.axis_size(STREAM_AXES)
        total = self.experts.z_loss * z_loss(logits, valid) if self.experts.z_loss else 0 * local_sums.tokens
        if self.kind.loss is not None and self.experts.balance_loss:
            total += (
                self.experts.balance_loss * global_sums.tokens * share(self.kind.loss, local_sums, global_sums, ranks)
            )
        if self.experts.sequence_loss:
            rows = lambda a: a.reshape(*of_rows.shape, -1)
            probabilities = rows(routing.statistics["probabilities"])
            total += self.experts.sequence_loss * sequence_loss(rows(routing.indices), probabilities, of_rows)
        if self.kind.bias:
            # Zero, with the counts as its derivative: they are summed over ranks and microbatches like any gradient.
            bias = self.weight("bias").astype(jnp.float32)
            total += jnp.sum((bias - lax.stop_gradient(bias)) * local_sums.counts)
        fullest = lambda counts: counts.max() / jnp.maximum(counts.mean(), 1e-20)
        of_rank = global_sums.counts.reshape(lax.axis_size("expert"), -1).sum(axis=1)
        return {
            AUXILIARY_LOSS: total,
            ROUTED_TOKENS: local_sums.tokens,
            LOAD: fullest(global_sums.counts) * local_sums.tokens,
            RANK_LOAD: fullest(of_rank) * local_sums.tokens,
            ENTROPY: jnp.sum(valid * entropy(lax.stop_gradient(logits))) if logits.ndim else 0 * local_sums.tokens,
        }

    # ---- experts

    def _exchanged(
        self,
        ops: Ops,
        x: Float[Array, "tokens embed"],
        routing: Routing,
        valid: jax.Array,
        experts: ExpertsConfig,
        shared: Callable[[jax.Array], jax.Array] | None = None,
    ) -> tuple[Float[Array, "tokens embed"], Float[Array, ""], Int[Array, ""]]:
        """(the sums over the experts of each row, `shared` included, assignments that this rank has handled, rounds of
        the exchange)."""
        layout = self.layout
        slices = layout.slices.name
        exchange = EXCHANGES[layout.exchange.name](experts, len(x) // slices, layout)
        weights = {name: self.weight(name) for name, spec in self.part.weights.items() if spec.routed}
        grouped = ops.grouped({group: [weights[name] for name in names] for group, names in self._matrices.items()})
        indices = routing.indices
        if grouped.kind is not None:  # rows of each kind are sent as those of experts beside each other
            indices = jnp.where(indices == NO_EXPERT, NO_EXPERT, indices * grouped.kinds + grouped.kind.reshape(-1, 1))
            exchange.experts *= grouped.kinds
        lists = stacked_lists(exchange, slices, indices, valid)
        weights |= grouped.constants
        x, gates = vary_alike((x, routing.weights))  # those of a hash are constants
        products = partial(self._products, grouped)
        operands = Operands(weights, grouped.observed)
        y, handled, rounds = exchanged(exchange, products, operands, x, gates, lists, shared)
        return y, handled / exchange.copies, rounds

    @property
    def _matrices(self) -> Mapping[str, Sequence[str]]:
        """The matrices of the routed experts, by group of matmuls."""
        return {IN: [name for name in ("up", "gate") if name in self.part.weights], OUT: ["down"]}

    def _products(
        self, grouped: Grouped, operands: Operands, rows: jax.Array, gates: jax.Array, sizes: jax.Array
    ) -> jax.Array:
        """The experts of this rank for the rows of each, times the routers' weights."""
        w = operands.weights
        if self.experts.weigh_inputs:
            rows, gates = (rows.astype(jnp.float32) * gates[:, None]).astype(rows.dtype), jnp.ones_like(gates)
        biased = "down_bias" in w
        even = 1 / min(self.layout.capacity, lax.axis_size("expert"))  # the share of the room that is used
        of_kinds, sizes = sizes, grouped.rows_of_groups(sizes)
        expected = round(len(rows) * even)
        options = {"expected": expected, "group_sizes": sizes, "implementation": self.layout.products.name}

        def with_term(x: jax.Array, name: str, y: jax.Array) -> jax.Array:
            term = self.part.term(name)
            if term is None:
                return y
            return y + grouped.term(x, (w[term.first], w[term.second]), term.scale, of_kinds, expected)

        def times(group: str, x: jax.Array) -> list[jax.Array]:
            names = self._matrices[group]
            ys = grouped.products(group, x, [w[name] for name in names], operands, inward=group == IN, **options)
            return [with_term(x, name, y) for name, y in zip(names, ys, strict=True)]

        made = dict(zip(self._matrices[IN], times(IN, rows), strict=True))
        of_row = expert_of_row(sizes, len(rows)) if biased else None
        if of_row is not None:
            made = {name: one + rows_of_experts(of_row, w[f"{name}_bias"]) for name, one in made.items()}
        hidden = self._activated("expert", made)
        # The weight is a factor of the hidden activation, so that no backward needs the output of `down`.
        weighted = (hidden.astype(jnp.float32) * gates[:, None]).astype(rows.dtype)
        (y,) = times(OUT, weighted)
        if of_row is None:
            return y
        # The sums of tensor ranks are partial, so one of them adds the bias.
        of_one = jnp.where(lax.axis_index("tensor") == 0, of_row * gates[:, None], 0)
        return y + rows_of_experts(of_one, w["down_bias"])

    def _shared(self, x: Float[Array, "batch part embed"], ops: Ops) -> Float[Array, "batch part embed"]:
        made = self.project("shared_in", x, ops.matmul("shared_in"))
        names = ("up", "gate")[: len(made)]
        hidden = self._activated(
            "shared", {name: self.biased(y, f"shared_{name}") for name, y in zip(names, made, strict=True)}
        )
        weight: Float[Array, "batch part 1"] | float = 1.0
        if SHARED_ROUTER in self.part.weights:
            weight = jax.nn.sigmoid(logits_of(self, x.reshape(-1, x.shape[-1]), SHARED_ROUTER)).reshape(*x.shape[:2], 1)
            # A factor of the hidden activation, as that of a routed expert.
            hidden = (hidden * gather_sequence(weight)).astype(hidden.dtype)
        y = self.project("shared_out", hidden, ops.matmul("shared_out"))
        if "shared_down_bias" not in self.part.weights:
            return y
        return y + (weight * self.weight("shared_down_bias")).astype(y.dtype)  # once, and not on each tensor rank

    def _activated(self, of: str, made: dict[str, jax.Array]) -> jax.Array:
        """The hidden activation, of the feed-forward's non-linearity."""
        named: dict[str, jax.Array] = {name: self.named(value, f"{of}_{name}") for name, value in made.items()}
        feed_forward: Any = self.feed_forward
        non_linear = feed_forward.non_linear
        if "gate" not in named:
            return self.named(non_linear(named["up"]), f"{of}_hidden")
        activated = self.named(non_linear(named["gate"]), f"{of}_activated")
        return self.named(activated * feed_forward.factor(named["up"]), f"{of}_hidden")
