"""Prompts, and then one token of each row at a time, through the layers: the functions on one device's parts.

The rows that are continued are slots: one that has ended is idle until the cache behind another prompt takes its place.

A new token of each row makes a batch of short rows, of which nothing could be split over the tensor ranks. So decoding
runs the layers on one row that has the rows' new tokens side by side: projections and feed-forwards do not care whose
token is whose, and attention takes the tokens apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxpar.config.counting import padded_vocab
from jaxpar.config.kinds import kind_model
from jaxpar.generation.layout import page_tokens
from jaxpar.generation.sampling import Drawn, Draws, draw
from jaxpar.layers.attention import NAME as MIXED
from jaxpar.layers.block import Block, Context, DecodedRows
from jaxpar.layers.context import sequence_part
from jaxpar.layers.declaration.adaptation import AdapterStack
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layers.ops.adapted import BY_ADAPTER, sort_by_adapter
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context, reduce_max, reduce_sum
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.materialize import gather
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch, DecoderStages
from jaxpar.runtime.batch import CARRIED, single_document_fields
from jaxpar.runtime.records import Records, with_layer

type Cache = Mapping[str, Sequence[Mapping[str, PyTree]]]
"""The cache of each block of each layer, by the layers' kind."""

TILE_BYTES = 2**28
"""Most bytes of float32 logits of rows that are scored that exist at a time on a device."""
SAME_AXES = ("pipe", "context", "tensor")
"""Axes whose ranks draw the same token."""


class Rows(NamedTuple):
    """The rows that are continued."""

    cache: Cache
    token: Int[Array, " batch"]
    """The last token of each row, which is not in the cache yet."""
    lengths: Int[Array, " batch"]
    """Tokens of each row, the last one included; 0 for an idle row."""
    draws: Draws
    seen: Bool[Array, "batch vocab"]
    """Tokens that each row has."""
    pages: Int[Array, "batch pages"]
    """Pages of each row, in order (`jaxpar.generation.pages`)."""


class Prefix(NamedTuple):
    """Prompts that were read, and the first token of each of their answers, [batch x answers]."""

    cache: Cache
    lengths: Int[Array, " batch"]
    seen: Bool[Array, "batch vocab"]
    token: Int[Array, " answers"]
    draws: Draws


@dataclass(frozen=True, eq=False)
class GenerationFunctions:
    """Prefill and decoding, inside `shard_map`; `layout` has one pipeline stage, and stores weights as it computes."""

    layout: StepLayout
    capacity: int
    """Tokens that a row may get to."""
    records: bool = False
    """Whether both also return what blocks record of the tokens that they read."""

    @cached_property
    def stages(self) -> DecoderStages:
        """The model as decoder stages, for inference."""
        return stages_of(self.layout, train=False)

    @property
    def dtype(self) -> str:
        """The dtype in which layers compute, and keys and values are kept."""
        return self.layout.plan.dtypes.compute

    def prefill(
        self, weights: Weights, batch: Batch, lengths: Int[Array, " batch"], draws: Draws
    ) -> tuple[Prefix, tuple[Drawn, Records]]:
        """The prompts with the first token of each answer, and records [batch, part, layer, ...] of the prompts.

        Args:
            weights: in storage placement, `unstacked`.
            batch: a microbatch [batch, part], each row with its prompt from index 0 on.
            lengths: tokens of each prompt, at least 1.
            draws: of each answer; those of one prompt stand side by side, and share its forward.
        """
        adapter = draws.adapter[:: len(draws.adapter) // len(lengths)]
        batch, all_lengths = vary((self._adapted(batch, adapter[:, None]), lengths))
        logits, cache, records = self.after_prompts(weights, batch, all_lengths)
        each = lambda leaf: jnp.repeat(leaf, len(draws.stream) // len(lengths), axis=0)
        seen = self._seen(batch, all_lengths)
        drawn = _drawn(each(logits), each(seen), draws, each(lengths))
        seen = reduce_max(seen.astype(jnp.int8), SAME_AXES).astype(bool)
        prefix = Prefix(cache, lengths, seen, drawn.token, draws)
        return prefix, (drawn, {name: reduce_max(values, ("pipe",)) for name, values in records.items()})

    def scores(
        self, weights: Weights, batch: Batch, lengths: Int[Array, " batch"], adapter: Int[Array, " batch"]
    ) -> Float[Array, "batch seq"]:
        """The log-probability of each label of rows, by the layers as they read prompts."""
        batch, lengths = vary((self._adapted(batch, adapter[:, None]), lengths))
        logits = batch["tokens"].size * padded_vocab(self.layout.config.model) // lax.axis_size("tensor")
        likely = self.label_log_probabilities(weights, batch, lengths, -(-4 * logits // TILE_BYTES))
        return reduce_max(vary(likely), ("pipe", "tensor"))

    def insert(
        self,
        rows: Rows,
        prefix: Prefix,
        copies: Int[Array, "copies three"],
        filled: Int[Array, "pages three"],
        sizes: Int[Array, "one two"],
    ) -> Rows:
        """Rows some of which continue prompts from now on; `rows.pages` has their pages already.

        Args:
            rows: the rows.
            prefix: the prompts.
            copies: (row, prompt, answer) of each row that begins, by their indices on this device.
            filled: (prompt, index, page) of each page that takes tokens of a prompt; `index` is among its pages.
            sizes: the number of valid rows of `copies` and of `filled`.
        """
        answers = len(prefix.token) // len(prefix.lengths)
        paged = self.map_blocks(lambda block: block.paged(self.capacity))

        def begin(index: jax.Array, rows: Rows) -> Rows:
            row, prompt, answer = copies[index]

            def put(tree: PyTree, new: PyTree, at: jax.Array) -> PyTree:
                one = lambda leaf: lax.dynamic_index_in_dim(leaf, at)
                update = lambda leaf, new: lax.dynamic_update_slice_in_dim(leaf, one(new), row, 0)
                return jax.tree.map(update, tree, new)

            mine = prompt * answers + answer
            token, draws = put((rows.token, rows.draws), (prefix.token, prefix.draws), mine)
            lengths, seen = put((rows.lengths, rows.seen), (prefix.lengths + 1, prefix.seen), prompt)
            same = lambda paged, cached, new: cached if paged else put(cached, new, prompt)
            cache = jax.tree.map(same, paged, rows.cache, prefix.cache)
            return Rows(cache, token, lengths, draws, seen.at[row, token[row]].set(True), rows.pages)

        def fill(index: jax.Array, cache: Cache) -> Cache:
            prompt, at, page = filled[index]

            def put(pool: jax.Array, new: jax.Array) -> jax.Array:
                size = pool.shape[2]
                new = lax.dynamic_slice(new, (prompt, 0, at * size, 0), (1, *pool.shape[1:]))
                return lax.dynamic_update_slice(pool, new, (page, 0, 0, 0))

            same = lambda paged, cached, new: jax.tree.map(put, cached, new) if paged else cached
            return jax.tree.map(same, paged, cache, prefix.cache)

        rows = lax.fori_loop(0, sizes[0, 0], begin, rows)
        return rows._replace(cache=lax.fori_loop(0, sizes[0, 1], fill, rows.cache))

    def decode(self, weights: Weights, rows: Rows, active: Bool[Array, " batch"]) -> tuple[Rows, tuple[Drawn, Records]]:
        """The rows with one token more where they are active, the others idle from now on; and records
        [batch, 1, layer, ...] of the last token."""
        lengths = jnp.where(active, rows.lengths, 0)
        token, all_lengths, cache = vary((rows.token, lengths, rows.cache))
        batch = single_document_fields(token[None], jnp.maximum(all_lengths - 1, 0)[None])
        batch = vary(self._adapted(batch, rows.draws.adapter[None]))
        logits, cache, records = self.after_tokens(weights, batch, all_lengths, cache, vary(rows.pages))
        drawn = _drawn(logits, rows.seen, rows.draws, lengths)
        seen = rows.seen.at[jnp.arange(len(lengths)), drawn.token].set(True)
        after = Rows(cache, drawn.token, jnp.where(active, lengths + 1, 0), rows.draws, seen, rows.pages)
        same = lambda last: reduce_max(last.swapaxes(0, 1), ("pipe", "context"))
        return after, (drawn, {name: same(last) for name, last in records.items()})

    def label_log_probabilities(
        self, weights: Weights, batch: Batch, lengths: Int[Array, " batch"], tiles: int
    ) -> Float[Array, "batch seq"]:
        """The log-probability of each label of `batch`, whose logits exist for one tile at a time."""
        x, *_ = self._layers(weights, self.stages.embed(weights, batch), batch, lengths, None)
        return self.stages.scores(weights, weights, x, batch["labels"], tiles=tiles)[0]

    def after_prompts(
        self, weights: Weights, batch: Batch, lengths: Int[Array, " batch"]
    ) -> tuple[Float[Array, "batch vocab"], Cache, Records]:
        """Logits after the last token of each prompt, the cache, and records."""
        x = self.stages.embed(weights, batch)
        x, cache, records = self._layers(weights, x, batch, lengths, None)
        last = sequence_part(batch["indices"]) == lengths[:, None] - 1
        x = vary(reduce_sum(jnp.where(last[..., None], x, 0).sum(axis=1), ("context", "tensor")))
        missing = -len(x) % lax.axis_size("tensor")
        x = sequence_part(jnp.pad(x, ((0, missing), (0, 0)))[None])
        return self._logits(weights, x)[: len(lengths)], cache, records

    def after_tokens(
        self,
        weights: Weights,
        batch: Batch,
        lengths: Int[Array, " batch"],
        cache: Cache,
        pages: Int[Array, "batch pages"],
    ) -> tuple[Float[Array, "batch vocab"], Cache, Records]:
        """Logits after a token more of each row, the cache with it, and records; the tokens of the rows are the row of
        `batch`."""
        x = self.stages.embed(weights, batch)
        x, cache, records = self._layers(weights, x, batch, lengths, cache, pages)
        return self._logits(weights, x), cache, records

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return page_tokens(self.capacity, self.layout.plan.axes.context)

    def map_blocks[Value](self, value: Callable[[Block], Value]) -> Mapping[str, list[dict[str, Value]]]:
        """A value of each block, by kind and layer like a cache."""
        order, prototype = self.stages.order, self.stages.prototype
        of = lambda kind: {block.part.name: value(block) for block in prototype(kind).blocks}
        return {kind: [of(kind)] * stack.rows for kind, stack in order.stacks.items()}

    def _adapted(self, batch: Batch, adapter: Int[Array, "batch part"]) -> Batch:
        """`batch` with its tokens by adapter, where the weights have several; `adapter` may have one column of all."""
        if self._stack is None:
            return batch
        of_tokens = jnp.broadcast_to(adapter, batch["tokens"].shape)
        return batch | {CARRIED: {BY_ADAPTER: sort_by_adapter(of_tokens, self._stack.size)}}

    @property
    def _stack(self) -> AdapterStack | None:
        """The adapters of the weights, if they have several."""
        lora = self.layout.config.lora
        return lora if isinstance(lora, AdapterStack) else None

    def _layers(
        self,
        weights: Weights,
        x: jax.Array,
        batch: Batch,
        lengths: Int[Array, " batch"],
        cache: Cache | None,
        pages: Int[Array, "batch pages"] | None = None,
    ) -> tuple[jax.Array, Cache, Records]:
        """`x` and the cache after all layers, and their records."""
        stages, rows = self.stages, DecodedRows(lengths, self.capacity, self.page, pages)
        tokens, x = stages.token_context(batch, self.capacity), vary(x)
        records = stages.empty_records(x) if self.records else {}
        layers = {kind: stages.prototype(kind, self._stack) for kind in stages.order.stacks}
        latest: dict[str, PyTree] = {}
        filled: dict[str, list[PyTree]] = {kind: [None] * stack.rows for kind, stack in stages.order.stacks.items()}
        for kind, row in stages.order.slots:
            weight = gather(weights[LAYERS][kind][row], stages.placements, part=(LAYERS, kind), unstacked=True)
            layer = with_weights(layers[kind], weight)
            index = stages.loop.stacks[kind].order.local(0)[row]
            new = {} if records else None
            source = latest.get(kind_model(stages.model, kind).keys_of or "")
            context = Context(index, tokens[kind], stages.attend[kind], False, rows, new, source=source)
            x, after = layer.decode(x, None if cache is None else cache[kind][row], context)
            x, filled[kind][row] = vary(x), vary(after)
            latest[kind] = filled[kind][row].get(MIXED)
            records = with_layer(records, new or {}, index)
        return x, filled, records

    def _seen(self, batch: Batch, lengths: Int[Array, " batch"]) -> Bool[Array, "batch vocab"]:
        """Tokens that the prompts have."""
        tokens, indices = gather_context(batch["tokens"]), gather_context(batch["indices"])
        vocab = padded_vocab(self.layout.config.model)
        columns = jnp.where(indices < lengths[:, None], tokens, vocab)
        empty = vary(jnp.zeros((len(lengths), vocab), bool))
        return empty.at[jnp.arange(len(lengths))[:, None], columns].set(True, mode="drop")

    def _logits(self, weights: Weights, x: Float[Array, "one part embed"]) -> Float[Array, "batch vocab"]:
        """Logits after the residual stream `x` of the last tokens of rows, side by side."""
        # Nothing is differentiated, so any tree does for the accumulators.
        logits = self.stages.logits(weights, weights, x)[0]
        with jax.named_scope("gather_logits"):
            return lax.all_gather(logits, self.stages.vocab_axes, axis=1, tiled=True)


def _drawn(logits: jax.Array, seen: jax.Array, draws: Draws, lengths: jax.Array) -> Drawn:
    """See `draw`; the same on all ranks of `SAME_AXES`."""
    return Drawn(*(reduce_max(vary(x), SAME_AXES) for x in draw(logits, *vary((seen, draws, lengths)))))
