"""The router of a mixture: log weights of the models from the hashed n-grams of the tokens so far.

The evidence of a text is the sum, over its n-grams, of the rows of a table; its mean is what weighs: log weights are
`log_softmax(evidence / sqrt(tokens) + bias)`, of which the largest `top` stay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, UInt32

from jaxpar.data.clusters.ngrams import ORDERS, buckets
from jaxpar.generation.layout import BY_ROW


class Mixing(NamedTuple):
    """The numbers of models in a mixture, and of those that are mixed at a token."""

    models: int
    top: int


class RouterWeights(NamedTuple):
    """The weights of a router of k models, as arrays of NumPy or of JAX."""

    table: Any
    """The weights of hashed n-grams, float [bucket, k]."""
    bias: Any
    """The bias of each model, float [k]."""


class RouterState(NamedTuple):
    """The state of a router after the tokens of rows."""

    evidence: Float[Array, "batch k"]
    last: Int[Array, "batch before"]
    """The last `ORDERS - 1` tokens; -1 before the first one."""


_BY_ROW: Any = BY_ROW
LAYOUT = RouterWeights(PartitionSpec(), PartitionSpec())
"""Every device has the full router."""


class RouterCache:
    """The cache of a router, declared as blocks declare theirs: the state of rows, which is not in pages."""

    cache: Any = RouterState(_BY_ROW, _BY_ROW)

    def paged(self, capacity: int) -> bool:
        """Returns False: the router's cache has no pages."""
        del capacity
        return False


def evidence_of_tokens(weights: RouterWeights, tokens: Int[Array, "batch seq"]) -> Float[Array, "batch seq k"]:
    """The summand of each token of rows that begin a text."""
    return _evidence(weights, _grams(jnp.full((len(tokens), ORDERS - 1), -1), tokens))


def read_prompts(weights: RouterWeights, tokens: Int[Array, "batch seq"], lengths: Int[Array, " batch"]) -> RouterState:
    """The state after the first `lengths` tokens of each row."""
    valid = jnp.arange(tokens.shape[1]) < lengths[:, None]
    evidence = jnp.where(valid[..., None], evidence_of_tokens(weights, tokens), 0).sum(axis=1)
    padded = jnp.pad(tokens, ((0, 0), (ORDERS - 1, 0)), constant_values=-1)
    last = lengths[:, None] + jnp.arange(ORDERS - 1)
    return RouterState(evidence, jnp.take_along_axis(padded, last, axis=1))


def read_tokens(weights: RouterWeights, state: RouterState, tokens: Int[Array, " batch"]) -> RouterState:
    """The state after one token more of each row."""
    evidence = _evidence(weights, _grams(state.last, tokens[:, None]))[:, 0]
    return RouterState(state.evidence + evidence, jnp.concatenate([state.last[:, 1:], tokens[:, None]], axis=1))


def log_weights(
    weights: RouterWeights, evidence: Float[Array, "*row k"], tokens: Int[Array, "*row"], top: int
) -> Float[Array, "*row k"]:
    """Log weights of the models after rows of `tokens` tokens with that evidence; minus infinity but for the `top`
    largest, the first of equal ones."""
    logits = evidence / jnp.sqrt(jnp.maximum(tokens, 1).astype(evidence.dtype))[..., None] + weights.bias
    if top < logits.shape[-1]:
        rank = jnp.argsort(jnp.argsort(-logits, axis=-1), axis=-1)
        logits = jnp.where(rank < top, logits, -jnp.inf)
    return jax.nn.log_softmax(logits, axis=-1)


def mixed(of_models: Float[Array, "k *token vocab"], weights: Float[Array, "*token k"]) -> Float[Array, "*token vocab"]:
    """Log-probabilities of the mixture, from those of each model and the log weights."""
    return jax.nn.logsumexp(of_models + jnp.moveaxis(weights, -1, 0)[..., None], axis=0)


def _grams(before: Int[Array, "batch before"], tokens: Int[Array, "batch seq"]) -> UInt32[Array, "batch seq orders"]:
    row = jnp.concatenate([before, tokens], axis=1).astype(jnp.uint32)  # -1 becomes `BEFORE`
    size = tokens.shape[1]
    return jnp.stack([row[:, first : first + size] for first in range(ORDERS)], axis=-1)


def _evidence(weights: RouterWeights, grams: UInt32[Array, "batch seq orders"]) -> Float[Array, "batch seq k"]:
    size = len(weights.table)
    return jnp.stack([weights.table[bucket.astype(jnp.int32)] for bucket in buckets(grams, size)]).sum(axis=0)
