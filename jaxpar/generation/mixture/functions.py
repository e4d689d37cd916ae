"""Prefill and decoding of a mixture: every model reads the tokens, and the router mixes their probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.generation.functions import SAME_AXES, GenerationFunctions
from jaxpar.generation.mixture import router
from jaxpar.generation.mixture.router import LAYOUT, Mixing, RouterCache
from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_context, reduce_max
from jaxpar.model.decoder import Batch
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

    def by_block(self, value: Callable[[Any], Any]) -> Any:
        """A value of each block of each model, and of the router."""
        return {MODELS: [super().by_block(value)] * self.mixing.models, ROUTER: value(RouterCache())}

    def after_prompts(
        self, weights: Any, batch: Batch, lengths: Int[Array, " batch"]
    ) -> tuple[Float[Array, "batch vocab"], Any, Records]:
        """See `GenerationFunctions`; logits are log-probabilities of the mixture."""
        logits, caches = [], []
        for one in weights[MODELS]:
            of_one, cache, _ = GenerationFunctions.after_prompts(self, one, batch, lengths)
            logits.append(of_one)
            caches.append(cache)
        state = router.read_prompts(weights[ROUTER], gather_context(batch["tokens"]), lengths)
        return self._mixed(weights, logits, state, lengths), {MODELS: caches, ROUTER: _same(state)}, {}

    def after_tokens(
        self, weights: Any, batch: Batch, lengths: Int[Array, " batch"], cache: Any, pages: Int[Array, "batch pages"]
    ) -> tuple[Float[Array, "batch vocab"], Any, Records]:
        """See `GenerationFunctions`; logits are log-probabilities of the mixture."""
        logits, caches = [], []
        for one, before in zip(weights[MODELS], cache[MODELS], strict=True):
            of_one, after, _ = GenerationFunctions.after_tokens(self, one, batch, lengths, before, pages)
            logits.append(of_one)
            caches.append(after)
        state = router.read_tokens(weights[ROUTER], cache[ROUTER], batch["tokens"][0])
        return self._mixed(weights, logits, state, lengths), {MODELS: caches, ROUTER: _same(state)}, {}

    def _mixed(self, weights: Any, logits: list[jax.Array], state: router.RouterState, lengths: jax.Array) -> jax.Array:
        assert not self.records, "a mixture has no records"
        of_models = jnp.stack([jax.nn.log_softmax(one, axis=-1) for one in logits])
        return router.mixed(of_models, router.log_weights(weights[ROUTER], state.evidence, lengths, self.mixing.top))


def _same(state: router.RouterState) -> router.RouterState:
    """The state, which is the same on all ranks that have the same rows."""
    return jax.tree.map(lambda leaf: reduce_max(vary(leaf), SAME_AXES), state)
