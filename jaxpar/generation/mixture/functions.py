"""Prefill and decoding of a mixture: every model reads the tokens, and the router mixes their probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.generation.functions import SAME_AXES, GenerationFunctions
from jaxpar.generation.mixture import router
from jaxpar.generation.mixture.router import LAYOUT, Mixing, RouterCache
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context, reduce_max
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch, DecoderStages
from jaxpar.model.tiled_loss import tiled_mixed_scores
from jaxpar.runtime.records import Records

MODELS, ROUTER = "models", "router"
"""The parts of the weights and of the cache of a mixture: a list with an entry for each model, and the router's."""


def mixture_layout(layout: Any, k: int) -> dict[str, Any]:
    """The partitions of the weights of a mixture of k models, from those of one."""
    return {MODELS: [layout] * k, ROUTER: LAYOUT}


@dataclass(frozen=True, eq=False)
class MixtureFunctions(GenerationFunctions):
    """The functions of a mixture, whose weights, and whose caches, are by `MODELS` and `ROUTER`."""

    mixing: Mixing = field(kw_only=True)

    def map_blocks(self, value: Callable[[Any], Any]) -> Any:
        """A value of each block of each model, and of the router."""
        return {MODELS: [super().map_blocks(value)] * self.mixing.models, ROUTER: value(RouterCache())}

    def after_prompts(
        self, weights: Weights, batch: Batch, lengths: Int[Array, " batch"]
    ) -> tuple[Float[Array, "batch vocab"], dict[str, PyTree], Records]:
        """See `GenerationFunctions`; logits are log-probabilities of the mixture."""
        logits, caches = [], []
        for one in weights[MODELS]:
            of_one, cache, _ = GenerationFunctions.after_prompts(self, one, batch, lengths)
            logits.append(of_one)
            caches.append(cache)
        state = router.read_prompts(weights[ROUTER], gather_context(batch["tokens"]), lengths)
        return self._mixed(weights, logits, state, lengths), {MODELS: caches, ROUTER: _same(state)}, {}

    def after_tokens(
        self,
        weights: Weights,
        batch: Batch,
        lengths: Int[Array, " batch"],
        cache: dict[str, PyTree],
        pages: Int[Array, "batch pages"],
    ) -> tuple[Float[Array, "batch vocab"], dict[str, PyTree], Records]:
        """See `GenerationFunctions`; logits are log-probabilities of the mixture."""
        logits, caches = [], []
        for one, before in zip(weights[MODELS], cache[MODELS], strict=True):
            of_one, after, _ = GenerationFunctions.after_tokens(self, one, batch, lengths, before, pages)
            logits.append(of_one)
            caches.append(after)
        state = router.read_tokens(weights[ROUTER], cache[ROUTER], batch["tokens"][0])
        return self._mixed(weights, logits, state, lengths), {MODELS: caches, ROUTER: _same(state)}, {}

    def label_log_probabilities(
        self, weights: Weights, batch: Batch, lengths: Int[Array, " batch"], tiles: int
    ) -> Float[Array, "batch seq"]:
        """See `GenerationFunctions`."""
        streams = [self._layers(one, self.stages.embed(one, batch), batch, lengths, None)[0] for one in weights[MODELS]]
        return mixed_scores(self.stages, self.mixing, weights, streams, batch, tiles)[0]

    def _mixed(
        self, weights: Weights, logits: list[jax.Array], state: router.RouterState, lengths: jax.Array
    ) -> jax.Array:
        assert not self.records, "a mixture has no records"
        of_models = jnp.stack([jax.nn.log_softmax(one, axis=-1) for one in logits])
        return router.mixed(of_models, router.log_weights(weights[ROUTER], state.evidence, lengths, self.mixing.top))


def mixed_scores(
    stages: DecoderStages, mixing: Mixing, weights: Weights, streams: Sequence[jax.Array], batch: Batch, tiles: int
) -> tuple[Float[Array, "batch seq"], Int[Array, "batch seq"]]:
    """`DecoderStages.scores` of a mixture, from the residual stream of each model after its layers; `tiles` are those
    of one model."""
    rows, labels = gather_context(batch["tokens"]), batch["labels"]
    evidence = jnp.cumsum(router.evidence_of_tokens(weights[ROUTER], rows), axis=1)
    lengths = jnp.broadcast_to(jnp.arange(rows.shape[1]) + 1, rows.shape)
    log_weights = router.log_weights(weights[ROUTER], evidence, lengths, mixing.top)
    part = labels.shape[1]
    local = lax.dynamic_slice_in_dim(vary(log_weights), lax.axis_index("context") * part, part, axis=1)
    each = zip(weights[MODELS], streams, strict=True)
    heads = [stages.scoring_head(one, one, x, tiles * mixing.models, 1.0) for one, x in each]
    return tiled_mixed_scores([one.x for one in heads], [one.table for one in heads], local, labels, heads[0].head)


def _same(state: router.RouterState) -> router.RouterState:
    """The state, which is the same on all ranks that have the same rows."""
    return jax.tree.map(lambda leaf: reduce_max(vary(leaf), SAME_AXES), state)
