"""Experts in place of a layer's feed-forward: routed ones, of which each token uses some, and shared ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import ExpertLayout
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.block import Block, Context
from jaxpar.layers.context import TokenContext, sequence_part
from jaxpar.layers.declaration.part import Part
from jaxpar.layers.dropout import draws
from jaxpar.layers.experts import clusters
from jaxpar.layers.experts.assignment import TOKEN_AXES, TokenOrder, within_capacity
from jaxpar.layers.experts.clusters import clustered
from jaxpar.layers.experts.declaration import IN, OUT, declare
from jaxpar.layers.experts.exchange import EXCHANGES
from jaxpar.layers.experts.losses import sequence_loss, share, z_loss
from jaxpar.layers.experts.rounds import Operands, Shared, exchanged, lists_of
from jaxpar.layers.experts.routers import ROUTERS, entropy, options_of
from jaxpar.layers.experts.routing import NO_EXPERT, RouterState, Routing, Sums
from jaxpar.layers.experts.rows import expert_of_row, rows_of_experts
from jaxpar.layers.feed_forward.base import FeedForward
from jaxpar.layers.ops.plain import Grouped, Ops
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.mesh.parameters import Arrays
from jaxpar.runtime.batch import TOKENS, UPDATES, Field
from jaxpar.runtime.passes import AUXILIARY_LOSS, Output, Report
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.varying import vary_alike

ROUTED_TOKENS, LOAD, RANK_LOAD, ENTROPY, DROPPED, OVERFLOWS = (
    f"experts.{name}" for name in ("tokens", "load", "rank_load", "entropy", "dropped", "overflows")
)
"""Sums over tokens and layers: of 1; of the load of the fullest expert, relative to the mean; of that of the fullest
expert rank; of the entropy of the routing; of assignments that no expert has computed; of 1 where an exchange took more
than one round."""

NOISE_SITE = 1 << 20
"""What the noise of a router is drawn for, above all sites of dropout."""
FIRST_TEMPERATURE = 0.07
"""By which cosines are divided before training (X-MoE); its factor is learned."""


ROUTING = "routing"
"""The field with the experts of each token in each layer of the model, in place of those that the routers would choose:
[row, token, layer, choice], and `NO_EXPERT` where there is none. Layers without experts have a place too."""


def choices_of(experts: ExpertsConfig) -> int:
    """The columns of a layer's routing."""
    return experts.count if ROUTERS[experts.router].all_experts else experts.per_token


def fields_of(experts: ExpertsConfig, layers: int) -> tuple[Field, ...]:
    """The fields of a batch that experts read, in a model of `layers` layers."""
    kind, dims = ROUTERS[experts.router], (layers, choices_of(experts))
    routing = Field(ROUTING, dims=dims, limits=(NO_EXPERT, experts.count - 1), optional=True)
    return (routing, *([TOKENS] if kind.ids else []), *([UPDATES] if kind.anneals else []))


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
        self.feed_forward, self.router_kind = feed_forward, ROUTERS[model.experts.router]
        self.fields, self.options = fields_of(model.experts, model.layers), options_of(model.experts)
        self.layers = model.layers

    def __call__(self, x: Float[Array, "batch part embed"], context: Context, ops: Ops) -> Output:
        """The sum, and the report. Tokens that pad rows are sent to no expert and count in no statistic."""
        number, tokens, train = context.index, context.tokens, context.train
        flat = x.reshape(-1, x.shape[-1])
        counts = sequence_part(tokens.segments).ravel() > 0
        logits = self._router_logits(flat)
        state = self._state(flat, number, tokens, train)._replace(train=train, counts=counts)
        routing = self.router_kind.route(logits, state, self.experts, self.options)
        report = self._report(logits, routing, counts.astype(jnp.float32).reshape(x.shape[:2]))
        kept = self._without_dropped(routing, counts, tokens, train)
        every = lambda flat: self._shared(flat.reshape(x.shape), ops).reshape(flat.shape)
        shared = every if self.experts.shared else None
        if self.experts.clusters and train:
            send, slices = partial(self._exchanged, ops), self.layout.slices.name
            y, handled, rounds, more = clustered(send, self.experts, slices, number, flat, kept, counts)
            y = y if shared is None else y + shared(flat)
        else:
            y, handled, rounds = self._exchanged(ops, flat, kept, counts, self.experts, shared)
            more = {}
        chosen = jnp.sum(counts[:, None] & (routing.indices != NO_EXPERT)).astype(jnp.float32)
        of_layers = {f"{LOAD}.{one}": jnp.where(number == one, report[LOAD], 0.0) for one in range(self.layers)}
        overflows = report[ROUTED_TOKENS] * (rounds > 1)
        return y.reshape(x.shape), {
            **report, DROPPED: chosen - handled, OVERFLOWS: overflows, **more, **of_layers
        }  # fmt: skip

    # ---- routing

    def _logits(self, x: Float[Array, "tokens embed"], name: str) -> Float[Array, "tokens experts"]:
        """In float32: a rounded logit would choose another expert."""
        x, w = x.astype(jnp.float32), self.weight(name).astype(jnp.float32)
        logits = jnp.matmul(x, w, precision="highest")
        if f"{name}_bias" in self.part.weights:
            logits = logits + self.weight(f"{name}_bias").astype(jnp.float32)
        return self.named(logits, f"{name}_logits")

    def _router_logits(self, x: Float[Array, "tokens embed"]) -> Float[Array, "tokens experts"]:
        """The logits; of a router that learns nothing, a scalar."""
        if not self.router_kind.learned:
            return jnp.zeros(())
        if not self.router_kind.cosine:
            return self._logits(x, "router")
        projected = jnp.matmul(
            x.astype(jnp.float32), self.weight("projection").astype(jnp.float32), precision="highest"
        )
        unit = lambda a, axis: a * lax.rsqrt(jnp.sum(jnp.square(a), axis, keepdims=True) + 1e-12)
        tokens = unit(self.named(projected, "router_projected"), 1)
        experts = unit(self.weight("router").astype(jnp.float32), 0)
        temperature = FIRST_TEMPERATURE * jnp.exp(self.weight("temperature").astype(jnp.float32))
        return self.named(jnp.matmul(tokens, experts, precision="highest") / temperature, "router_logits")

    def _state(self, x: jax.Array, number: jax.Array, tokens: TokenContext, train: bool) -> RouterState:
        kind, state = self.router_kind, RouterState()
        if kind.bias:
            state = state._replace(bias=lax.stop_gradient(self.weight("bias").astype(jnp.float32)))
        if kind.noise:
            state = state._replace(noise=self._logits(x, "noise"))
        if kind.draw is not None and train:
            assert tokens.seed is not None, "training has a seed"
            site, indices = NOISE_SITE + number, sequence_part(tokens.indices)
            drawn = draws(kind.draw, self.experts.count, tokens.seed, site, tokens.examples, indices)
            state = state._replace(drawn=drawn.reshape(-1, self.experts.count))
        if kind.anneals and train:
            state = state._replace(step=tokens.fields[UPDATES.name].astype(jnp.float32))
        routed = tokens.fields.get(ROUTING)
        if kind.ordered and routed is None:
            state = state._replace(order=TokenOrder.of(tokens))
        if routed is not None:
            own = lax.dynamic_index_in_dim(routed, number, axis=2, keepdims=False)
            choices = choices_of(self.experts)
            state = state._replace(given=sequence_part(own)[..., :choices].reshape(-1, choices))
        if kind.ids:
            state = state._replace(ids=sequence_part(tokens.fields[TOKENS.name]).ravel())
        return state

    def _without_dropped(self, routing: Routing, counts: jax.Array, tokens: TokenContext, train: bool) -> Routing:
        """`routing` without the assignments beyond the capacity of an expert, of all ranks' tokens in order."""
        factor = self.experts.capacity_factor
        if factor is None or not train:
            return routing
        order = TokenOrder.of(tokens)
        kept = within_capacity(order.whole(routing.indices), order.whole(counts), self.experts.count, factor)
        return routing._replace(indices=jnp.where(order.own(kept), routing.indices, NO_EXPERT))

    def _report(self, logits: jax.Array, routing: Routing, of_rows: Float[Array, "batch part"]) -> Report:
        """This rank's share of the losses and of the statistics over the microbatch. `of_rows` is 1 for tokens that
        count."""
        counts = of_rows.ravel()
        chosen = routing.indices[:, :, None] == jnp.arange(self.experts.count)
        of_expert = jnp.sum(jnp.where(chosen, counts[:, None, None], 0.0), axis=(0, 1))
        own = Sums(
            counts.sum(),
            lax.stop_gradient(of_expert),
            {name: counts @ values for name, values in routing.statistics.items()},
        )
        leaves, tree = jax.tree.flatten(own)
        packed = reduce_sum(lax.stop_gradient(jnp.concatenate([leaf.ravel() for leaf in leaves])), TOKEN_AXES)
        ends = [sum(leaf.size for leaf in leaves[: place + 1]) for place in range(len(leaves) - 1)]
        parts = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(packed, ends), leaves, strict=True)]
        whole, ranks = tree.unflatten(parts), lax.axis_size(TOKEN_AXES)
        total = self.experts.z_loss * z_loss(logits, counts) if self.experts.z_loss else 0 * own.tokens
        if self.router_kind.loss is not None and self.experts.balance_loss:
            total += self.experts.balance_loss * whole.tokens * share(self.router_kind.loss, own, whole, ranks)
        if self.experts.sequence_loss:
            rows = lambda a: a.reshape(*of_rows.shape, -1)
            probabilities = rows(routing.statistics["probabilities"])
            total += self.experts.sequence_loss * sequence_loss(rows(routing.indices), probabilities, of_rows)
        if self.router_kind.bias:
            # Zero, with the counts as its derivative: they are summed over ranks and microbatches like any gradient.
            bias = self.weight("bias").astype(jnp.float32)
            total += jnp.sum((bias - lax.stop_gradient(bias)) * own.counts)
        fullest = lambda counts: counts.max() / jnp.maximum(counts.mean(), 1e-20)
        of_rank = whole.counts.reshape(lax.axis_size("expert"), -1).sum(axis=1)
        return {
            AUXILIARY_LOSS: total,
            ROUTED_TOKENS: own.tokens,
            LOAD: fullest(whole.counts) * own.tokens,
            RANK_LOAD: fullest(of_rank) * own.tokens,
            ENTROPY: jnp.sum(counts * entropy(lax.stop_gradient(logits))) if logits.ndim else 0 * own.tokens,
        }

    # ---- experts

    def _exchanged(
        self,
        ops: Ops,
        x: Float[Array, "tokens embed"],
        routing: Routing,
        counts: jax.Array,
        experts: ExpertsConfig,
        shared: Shared | None = None,
    ) -> tuple[Float[Array, "tokens embed"], Float[Array, ""], Int[Array, ""]]:
        """(the sums over the experts of each row, `shared` included, assignments that this rank has handled, rounds of
        the exchange)."""
        layout = self.layout
        slices = layout.slices.name
        exchange = EXCHANGES[layout.exchange.name](experts, len(x) // slices, layout)
        lists = lists_of(exchange, slices, routing.indices, counts)
        weights = {name: self.weight(name) for name, spec in self.part.weights.items() if spec.routed}
        grouped = ops.grouped({group: [weights[name] for name in names] for group, names in self._matrices.items()})
        weights |= grouped.constants
        x, gates = vary_alike((x, routing.weights))  # those of a hash are constants
        products = partial(self._products, grouped)
        operands = Operands(weights, grouped.observed)
        y, handled, rounds = exchanged(exchange, products, operands, x, gates, lists, shared)
        # After an all-gather, each tensor rank handles the rows of all of them.
        return y, handled / lax.axis_size("tensor") if layout.exchange.name == "all_gather" else handled, rounds

    @property
    def _matrices(self) -> Mapping[str, Sequence[str]]:
        """Those of the routed experts, by group of matmuls."""
        return {IN: [name for name in ("up", "gate") if name in self.part.weights], OUT: ["down"]}

    def _products(
        self,
        grouped: Grouped,
        operands: Operands,
        rows: jax.Array,
        gates: jax.Array,
        sizes: jax.Array,
    ) -> jax.Array:
        """The experts of this rank for the rows of each, times the routers' weights."""
        w = operands.weights
        biased = "down_bias" in w
        even = 1 / min(self.layout.capacity, lax.axis_size("expert"))  # the share of the room that is used
        options = {"implementation": self.layout.products.name, "expected": round(len(rows) * even)}
        # Kernels are for wider matrices than factors.
        of_rows = options | {"group_sizes": sizes}
        narrow = partial(grouped_matmul, **(of_rows | {"implementation": "xla"}))

        def times(group: str, x: jax.Array) -> list[jax.Array]:
            names = self._matrices[group]
            ys = grouped.products(group, x, [w[name] for name in names], operands, inward=group == IN, **of_rows)
            return [self._with_term(narrow, x, name, w, y) for name, y in zip(names, ys, strict=True)]

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
        y = self.project("shared_out", hidden, ops.matmul("shared_out"))
        return self.biased(y, "shared_down")  # once, and not on each tensor rank

    def _with_term(self, narrow: Any, x: jax.Array, name: str, w: Arrays, y: jax.Array) -> jax.Array:
        """`y`, which is `x` times a matrix, and `x` times the term that is added to the matrix, if there is one."""
        term = self.part.term(name)
        return y if term is None else y + narrow(narrow(x, w[term.first]) * term.scale, w[term.second])

    def _activated(self, of: str, made: dict[str, jax.Array]) -> jax.Array:
        """The hidden activation, of the feed-forward's non-linearity."""
        named: dict[str, Any] = {name: self.named(value, f"{of}_{name}") for name, value in made.items()}
        feed_forward: Any = self.feed_forward
        non_linear = feed_forward.non_linear
        if "gate" not in named:
            return self.named(non_linear(named["up"]), f"{of}_hidden")
        activated = self.named(non_linear(named["gate"]), f"{of}_activated")
        return self.named(activated * feed_forward.factor(named["up"]), f"{of}_hidden")
