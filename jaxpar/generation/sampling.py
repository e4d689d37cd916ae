"""Choice of the next token: temperature, top-k, top-p, min-p and a repetition penalty, for each row its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt

from jaxpar.config.errors import UserError


class NotFinite(UserError):
    """The log-probabilities of a model are not finite."""

    def __init__(self) -> None:
        super().__init__(
            "the model's log-probabilities are not all finite; expected finite weights, or another precision.compute"
        )


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling the next token. The filters apply in the order of the fields, as in `transformers`."""

    temperature: float = 0.0
    """Divides the logits; 0 takes the likeliest token, and then the filters below do nothing."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that the row has, and multiplies negative ones (arXiv:1909.05858)."""
    top_k: int = 0
    """Only the likeliest k tokens; 0 for all."""
    top_p: float = 1.0
    """Only the likeliest tokens whose probabilities add up to p, and at least one (arXiv:1904.09751)."""
    min_p: float = 0.0
    """Only tokens at least this many times as likely as the likeliest one (arXiv:2407.01082)."""
    tempered: bool = False
    """Whether log-probabilities are those at the temperature, if there is one; else they are those at 1."""

    def __post_init__(self) -> None:
        limits = {
            "temperature": (self.temperature, 0.0 <= self.temperature < 1e6, "a number from 0"),
            "repetition_penalty": (
                self.repetition_penalty, 0.0 < self.repetition_penalty < 1e6, "a number above 0 (1 changes nothing)",
            ),
            "top_k": (self.top_k, 0 <= self.top_k < 2**31, "a whole number from 0 (0 keeps all tokens)"),
            "top_p": (self.top_p, 0.0 < self.top_p <= 1.0, "a number above 0, at most 1"),
            "min_p": (self.min_p, 0.0 <= self.min_p <= 1.0, "a number from 0 to 1"),
        }  # fmt: skip
        for name, (value, holds, expected) in limits.items():
            if not holds:
                raise UserError(f"{name}: expected {expected}, got {value!r}")


LIKELIEST = Sampling()


class Draws(NamedTuple):
    """Sampling settings of each row; a row's draws depend on its settings and its length alone."""

    seed: UInt[Array, " batch"]
    stream: Int[Array, " batch"]
    """Distinguishes rows of one seed."""
    temperature: Float[Array, " batch"]
    repetition_penalty: Float[Array, " batch"]
    top_k: Int[Array, " batch"]
    top_p: Float[Array, " batch"]
    min_p: Float[Array, " batch"]
    tempered: Bool[Array, " batch"]
    adapter: Int[Array, " batch"]
    """Index of the adapter that the row is multiplied with; -1 for none."""


DTYPES: Any = Draws._make(("uint32", "int32", "float32", "float32", "int32", "float32", "float32", "bool", "int32"))


class Drawn(NamedTuple):
    """The next token of each row."""

    token: Int[Array, " batch"]
    log_probability: Float[Array, " batch"]
    """Log-probability of the token, in nats, by the model itself: at temperature 1, or under `tempered` at that of the
    draw, and without filters."""


def draw(
    logits: Float[Array, "batch vocab"],
    seen: Bool[Array, "batch vocab"],
    draws: Draws,
    lengths: Int[Array, " batch"],
) -> Drawn:
    """Draw the next tokens.

    Args:
        logits: float32; minus infinity for what is not a token.
        seen: which tokens each row has.
        draws: the settings of each row.
        lengths: tokens of each row.
    """
    likeliest = lambda logits: jnp.argmax(logits, axis=-1)

    def drawn(logits: jax.Array) -> jax.Array:
        warm = jnp.where(draws.temperature > 0, draws.temperature, 1)
        scaled = logits / warm[:, None]
        filters = (draws.top_k > 0) | (draws.top_p < 1) | (draws.min_p > 0)
        scaled = lax.cond(filters.any(), lambda x: filtered(x, draws), lambda x: x, scaled)
        token = jax.vmap(jax.random.categorical)(_keys(draws, lengths), scaled)
        return jnp.where(draws.temperature > 0, token, likeliest(logits))

    repeats = (draws.repetition_penalty != 1).any()
    chosen = lax.cond(repeats, lambda x: penalized(x, seen, draws.repetition_penalty), lambda x: x, logits)
    token = lax.cond((draws.temperature > 0).any(), drawn, likeliest, chosen)
    warmth = jnp.where(draws.tempered & (draws.temperature > 0), draws.temperature, 1)
    log_probabilities = jax.nn.log_softmax(logits / warmth[:, None], axis=-1)
    likely = jnp.take_along_axis(log_probabilities, token[:, None], axis=-1)[:, 0]
    return Drawn(token.astype(jnp.int32), likely)


def _keys(draws: Draws, lengths: Int[Array, " batch"]) -> jax.Array:
    def key(seed: jax.Array, stream: jax.Array, length: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), length)

    return jax.vmap(key)(draws.seed, draws.stream, lengths)


def penalized(
    logits: Float[Array, "batch vocab"], seen: Bool[Array, "batch vocab"], penalty: Float[Array, " batch"]
) -> Float[Array, "batch vocab"]:
    """Logits with those of seen tokens made less likely by the penalty of the row."""
    penalty = penalty[:, None]
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def filtered(logits: Float[Array, "batch vocab"], draws: Draws) -> Float[Array, "batch vocab"]:
    """Logits with minus infinity for what top-k, top-p and min-p leave out. Of equal logits all or none stay."""
    ordered = jnp.sort(logits, axis=-1)[:, ::-1]
    size = logits.shape[-1]
    last = jnp.where(draws.top_k > 0, jnp.minimum(draws.top_k, size), size) - 1
    least = jnp.take_along_axis(ordered, last[:, None], axis=-1)
    logits, ordered = (jnp.where(x < least, -jnp.inf, x) for x in (logits, ordered))
    probabilities = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    least = jnp.where(before < draws.top_p[:, None], ordered, jnp.inf).min(axis=-1, keepdims=True)
    # Rounded sums of all probabilities may be above 1.
    logits = jnp.where((logits < least) & (draws.top_p < 1)[:, None], -jnp.inf, logits)
    least = logits.max(axis=-1, keepdims=True) + jnp.log(draws.min_p)[:, None]
    return jnp.where(logits < least, -jnp.inf, logits)
