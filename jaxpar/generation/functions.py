"""A prompt, and then one token of each row at a time, through the layers: the functions on one device's parts.

A new token of each row makes a batch of short rows, of which nothing could be split over the tensor ranks. So decoding
runs the layers on one row that has the rows' new tokens side by side: projections and feed-forwards do not care whose
token is whose, and attention takes the tokens apart again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt

from jaxpar.config.counting import padded_vocab
from jaxpar.generation.sampling import Drawn, Sampling, draw
from jaxpar.layers.block import Context, DecodedRows
from jaxpar.layers.context import sequence_part
from jaxpar.layers.declaration.weights import with_weights
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context, reduce_max, reduce_sum
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.materialize import gather
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch, DecoderStages
from jaxpar.runtime.batch import one_document_rows
from jaxpar.runtime.records import Records, with_layer

type Cache = Mapping[str, Sequence[Mapping[str, PyTree]]]
"""By kind, for each layer the cache of each block."""

SAME_AXES = ("pipe", "context", "tensor")
"""Axes whose ranks draw the same token."""


class Rows(NamedTuple):
    """The rows that are continued."""

    cache: Cache
    token: Int[Array, " batch"]
    """The last token of each row, which is not in the cache yet."""
    lengths: Int[Array, " batch"]
    """Tokens of each row, the last one included."""
    numbers: Int[Array, " batch"]
    """A number for each row, which its draws depend on."""
    seen: Bool[Array, "batch vocab"] | None
    """Tokens that each row has; None without a repetition penalty."""


@dataclass(frozen=True, eq=False)
class GenerationFunctions:
    """Prefill and decoding, inside `shard_map`; `layout` has one pipeline stage, and stores weights as it computes."""

    layout: StepLayout
    capacity: int
    """Tokens that a row may get to."""
    sampling: Sampling
    answers: int = 1
    """Rows that continue each prompt."""
    records: bool = False
    """Whether both also return what blocks record of the tokens that they read."""

    @cached_property
    def stages(self) -> DecoderStages:
        """The model."""
        return stages_of(self.layout, train=False)

    @property
    def dtype(self) -> str:
        """In which layers compute and keys and values are kept."""
        return self.layout.plan.dtypes.compute

    def prefill(
        self,
        weights: Weights,
        batch: Batch,
        lengths: Int[Array, " batch"],
        numbers: Int[Array, " batch"],
        seed: UInt[Array, ""],
    ) -> tuple[Rows, tuple[Drawn, Records]]:
        """The rows after their prompts and one token more, and records [batch, part, layer, ...] of the prompts.

        Rows of one prompt stand side by side, and share its forward.

        Args:
            weights: in storage placement, `unstacked`.
            batch: a microbatch [batch, part], each row with its prompt from index 0 on.
            lengths: tokens of each prompt, at least 1.
            numbers: see `Rows`; of each answer.
            seed: of the draws.
        """
        batch, lengths, numbers = vary((batch, lengths, numbers))
        x = self.stages.embed(weights, batch)
        x, cache, records = self._layers(weights, x, batch, lengths, None)
        last = sequence_part(batch["indices"]) == lengths[:, None] - 1
        x = vary(reduce_sum(jnp.where(last[..., None], x, 0).sum(axis=1), ("context", "tensor")))
        seen = None
        if self.sampling.repetition_penalty != 1.0:
            seen = self._seen(batch, lengths)
        x, cache, lengths, seen, records = jax.tree.map(
            lambda leaf: jnp.repeat(leaf, self.answers, axis=0), (x, cache, lengths, seen, records)
        )
        rows = Rows(cache, lengths, lengths, numbers, seen)
        rows, drawn = self._next(weights, sequence_part(x[None]), rows, seed)
        return rows, (drawn, {name: reduce_max(values, ("pipe",)) for name, values in records.items()})

    def decode(self, weights: Weights, rows: Rows, seed: UInt[Array, ""]) -> tuple[Rows, tuple[Drawn, Records]]:
        """The rows with one token more, and records [batch, 1, layer, ...] of the last one."""
        rows = vary(rows)
        index = rows.lengths - 1
        batch = one_document_rows(rows.token[None], index[None])
        x, cache, records = self._layers(weights, self.stages.embed(weights, batch), batch, rows.lengths, rows.cache)
        rows, drawn = self._next(weights, x, rows._replace(cache=cache), seed)
        same = lambda last: reduce_max(last.swapaxes(0, 1), ("pipe", "context"))
        return rows, (drawn, {name: same(last) for name, last in records.items()})

    def _layers(
        self, weights: Weights, x: jax.Array, batch: Batch, lengths: Int[Array, " batch"], cache: Cache | None
    ) -> tuple[jax.Array, Cache, Records]:
        """`x` and the cache after all layers, and their records."""
        stages, rows = self.stages, DecodedRows(lengths, self.capacity)
        tokens, x = stages.token_context(batch), vary(x)
        records = stages.empty_records(x) if self.records else {}
        layers = {kind: stages.prototype(kind) for kind in stages.order.stacks}
        filled: dict[str, list[PyTree]] = {kind: [None] * stack.rows for kind, stack in stages.order.stacks.items()}
        for kind, row in stages.order.slots:
            weight = gather(weights[LAYERS][kind][row], stages.placements, part=(LAYERS, kind), unstacked=True)
            layer = with_weights(layers[kind], weight)
            index = stages.loop.stacks[kind].order.own(0)[row]
            new = {} if records else None
            context = Context(index, tokens[kind], stages.attend[kind], train=False, rows=rows, recorded=new)
            x, after = layer.decode(x, None if cache is None else cache[kind][row], context)
            x, filled[kind][row] = vary(x), vary(after)
            records = with_layer(records, new or {}, index)
        return x, filled, records

    def _seen(self, batch: Batch, lengths: Int[Array, " batch"]) -> Bool[Array, "batch vocab"]:
        """Tokens that the prompts have."""
        tokens, indices = gather_context(batch["tokens"]), gather_context(batch["indices"])
        vocab = padded_vocab(self.layout.config.model)
        columns = jnp.where(indices < lengths[:, None], tokens, vocab)
        empty = vary(jnp.zeros((len(lengths), vocab), bool))
        return empty.at[jnp.arange(len(lengths))[:, None], columns].set(True, mode="drop")

    def _next(
        self, weights: Weights, x: Float[Array, "one part embed"], rows: Rows, seed: UInt[Array, ""]
    ) -> tuple[Rows, Drawn]:
        """Draw a token for each row after the residual stream `x` of their last ones, side by side."""
        # Nothing is differentiated, so any tree does for the accumulators.
        logits = self.stages.logits(weights, weights, x)[0]
        with jax.named_scope("gather_logits"):
            logits = lax.all_gather(logits, self.stages.vocab_axes, axis=1, tiled=True)
        key = jax.random.key(vary(seed))
        of_row = lambda number, length: jax.random.fold_in(jax.random.fold_in(key, number), length)
        drawn = draw(logits, rows.seen, self.sampling, jax.vmap(of_row)(rows.numbers, rows.lengths))
        seen = rows.seen
        if seen is not None:
            seen = seen.at[jnp.arange(len(drawn.token)), drawn.token].set(True)
        same = lambda x: reduce_max(vary(x), SAME_AXES)
        drawn = Drawn(*map(same, drawn))
        token, lengths = drawn.token, same(rows.lengths + 1)
        seen = None if seen is None else same(seen.astype(jnp.int8)).astype(bool)
        return Rows(rows.cache, token, lengths, same(rows.numbers), seen), drawn
