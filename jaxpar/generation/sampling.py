"""Choice of the next token: temperature, top-k, top-p, min-p and a repetition penalty on the logits of whole rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpar.config.errors import UserError


class NotFinite(UserError):
    """The log-probabilities of a model are not finite."""

    def __init__(self) -> None:
        super().__init__(
            "the model's log-probabilities are not all finite; expected finite weights, or another precision.compute"
        )


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. The filters apply in the order of the fields, as in `transformers`."""

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


class Drawn(NamedTuple):
    """The next token of each row."""

    token: Int[Array, " batch"]
    log_probability: Float[Array, " batch"]
    """Log-probability of the token, in nats, by the model itself: at temperature 1, or under `tempered` at that of the
    draw, and without filters."""


def draw(
    logits: Float[Array, "batch vocab"],
    seen: Bool[Array, "batch vocab"] | None,
    sampling: Sampling,
    keys: jax.Array,
) -> Drawn:
    """Draw the next tokens.

    Args:
        logits: float32; minus infinity for what is no token.
        seen: which tokens each row has; needed for a repetition penalty.
        sampling: the settings.
        keys: a typed random key for each row, [batch].
    """
    chosen = penalized(logits, seen, sampling.repetition_penalty)
    if sampling.temperature == 0.0:
        token = jnp.argmax(chosen, axis=-1)
    else:
        kept = filtered(chosen / sampling.temperature, sampling)
        token = jax.vmap(jax.random.categorical)(keys, kept)
    if sampling.tempered and sampling.temperature:
        logits = logits / sampling.temperature
    own = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), token[:, None], axis=-1)[:, 0]
    return Drawn(token.astype(jnp.int32), own)


def penalized(
    logits: Float[Array, "batch vocab"], seen: Bool[Array, "batch vocab"] | None, penalty: float
) -> Float[Array, "batch vocab"]:
    """Logits with those of seen tokens made less likely by `penalty`."""
    if penalty == 1.0:
        return logits
    assert seen is not None, "a repetition penalty needs the tokens of the rows"
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def filtered(logits: Float[Array, "batch vocab"], sampling: Sampling) -> Float[Array, "batch vocab"]:
    """Logits with minus infinity for what top-k, top-p and min-p leave out. Of equal logits all or none stay."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, sampling.top_k)[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.top_p < 1.0:
        ordered = jnp.sort(logits, axis=-1)[:, ::-1]
        probabilities = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.where(before < sampling.top_p, ordered, jnp.inf).min(axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.min_p > 0.0:
        least = logits.max(axis=-1, keepdims=True) + jnp.log(sampling.min_p)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits
