"""Several residual streams in float64 (AltUp, Baykal et al. 2023, as Gemma 3n's published code has it), and gates that
are sparse."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import jax.numpy as jnp

type Norm = Callable[[Any], Any]


def modes(x: Any, weights: Any, norm: Norm) -> Any:
    """The numbers of a token that all coefficients are sums of."""
    return jnp.tanh((norm(x) / x.shape[-1]) @ weights["router"])


def predicted(streams: list[Any], active: int, weights: Any, norm: Norm) -> list[Any]:
    """Each stream, plus all streams by coefficients of the active one (sec. 3.1)."""
    of_token = modes(streams[active], weights, norm)
    coefficients = jnp.einsum("bsm,mtf->tfbs", of_token, weights["prediction"])
    return [
        before + sum(coefficients[to, source][..., None] * stream for source, stream in enumerate(streams))
        for to, before in enumerate(streams)
    ]


def corrected(before: list[Any], active: int, made: Any, weights: Any, norm: Norm) -> list[Any]:
    """Each prediction, plus what the layer changed of the active one, by coefficients around 1."""
    of_token = modes(made, weights, norm)
    changed = made - before[active]
    return [one + (1 + of_token @ weights["correction"][:, to])[..., None] * changed for to, one in enumerate(before)]


def scaled(y: Any, like: Any) -> Any:
    """`y` with the root mean square of another vector of each token."""
    size = lambda x: jnp.mean(x * x, axis=-1, keepdims=True)
    return y * jnp.sqrt(size(like)) / jnp.sqrt(jnp.maximum(size(y), 1e-5))


def first(x: Any, weights: Any, options: Any) -> list[Any]:
    """The streams before the first layer."""
    streams = dict(options["altup"]).get("streams", 4) if options["altup"] else 1
    return [x, *(scaled(x @ weights[f"stream_{index}"], x) for index in range(1, streams))]


def last(streams: list[Any], weights: Any) -> Any:
    """The mean of the streams behind the last layer."""
    head, *others = streams
    if not others:
        return head
    return (head + sum(scaled(x @ weights[f"stream_{i}"], head) for i, x in enumerate(others, 1))) / len(streams)


def sparse(gate: Any, share: float) -> Any:
    """The gates less a quantile of the normal distribution with their mean and deviation, at least 0 (Gemma 3n)."""
    mean = gate.mean(axis=-1, keepdims=True)
    deviation = jnp.sqrt(((gate - mean) ** 2).mean(axis=-1, keepdims=True))
    above = gate - mean - NormalDist().inv_cdf(share) * deviation
    return jnp.where(above > 0, above, 0.0)
