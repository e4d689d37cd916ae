"""Cross-entropy over a vocabulary that is split over mesh axes, without ever gathering the logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import gather_weight, reduce_max, reduce_sum
from pallas_kernels.vjp_parts import custom_vjp


@custom_vjp(2)
def vocabulary_cross_entropy(
    logits: Float[Array, "batch seq local_vocab"], labels: Int[Array, "batch seq *label"], axes: tuple[str, ...]
) -> tuple[Float[Array, "batch seq *label"], Float[Array, "batch seq"]]:
    """Negative log-likelihood of `labels`, one or several of each token, and log-sum-exp, in nats; the same on every
    rank of `axes`.

    `labels` are ids of the full vocabulary; rank r of `axes` holds columns [r * local_vocab, (r + 1) * local_vocab).
    The derivative saves the logits and one number per token. Sends a maximum and a sum per token, and a sum per label.
    Source: Megatron-LM (arXiv:1909.08053, section 3).
    """
    return _forward(logits, labels, axes)[0]


def reshape_to_labels(
    values: Shaped[Array, "batch seq"], labels: Int[Array, "batch seq *label"]
) -> Shaped[Array, "..."]:
    """Values of tokens in the shape of their labels; a token may have several labels."""
    return values.reshape(*values.shape, *(1,) * (labels.ndim - values.ndim))


def top_choices(
    logits: Float[Array, "batch seq local_vocab"], choices: int, axes: tuple[str, ...]
) -> tuple[Int[Array, "batch seq choice"], Float[Array, "batch seq choice"]]:
    """The tokens with the largest logits, the first of equal ones first, and these logits; the same on every rank of
    `axes`, over which it sends two numbers for each choice of each rank."""
    largest, column = lax.top_k(logits, min(choices, logits.shape[-1]))
    column = column + lax.axis_index(axes) * logits.shape[-1]
    largest, column = (gather_weight(vary(part, axes), axes, part.ndim - 1) for part in (largest, column))
    largest, chosen = lax.top_k(largest, choices)
    return jnp.take_along_axis(column, chosen, axis=-1), largest


def likeliest(logits: Float[Array, "batch seq local_vocab"], axes: tuple[str, ...]) -> Int[Array, "batch seq"]:
    """The token with the largest logit, the first of equal ones; the same on every rank of `axes`.

    Sends two floats per token.
    """
    largest = logits.max(axis=-1)
    first = lax.axis_index(axes) * logits.shape[-1] + jnp.argmax(logits, axis=-1)
    none = jnp.iinfo(jnp.int32).max
    return -reduce_max(-jnp.where(largest == reduce_max(largest, axes), first, none).astype(jnp.int32), axes)


def _local_label(axes: tuple[str, ...], logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The column of each label on this rank, and whether this rank has it."""
    column = labels - lax.axis_index(axes) * logits.shape[-1]
    local = (column >= 0) & (column < logits.shape[-1])
    return jnp.where(local, column, 0), local


def _forward(
    logits: jax.Array, labels: jax.Array, axes: tuple[str, ...]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
    top = reduce_max(logits.max(axis=-1), axes)
    total = reduce_sum(jnp.exp(logits - top[..., None]).sum(axis=-1), axes)
    lse = top + jnp.log(total)
    column, local = _local_label(axes, logits, labels)
    picked = jnp.take_along_axis(logits, column.reshape(*lse.shape, -1), axis=-1).reshape(labels.shape)
    label = reduce_sum(jnp.where(local, picked, 0.0), axes)
    return (reshape_to_labels(lse, labels) - label, lse), (logits, labels, lse)


def _backward(
    axes: tuple[str, ...], residuals: tuple[jax.Array, jax.Array, jax.Array], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None]:
    (logits, labels, lse), (of_nll, of_lse) = residuals, cotangents
    column, local = _local_label(axes, logits, labels)
    probability = jnp.exp(logits - lse[..., None])
    if labels.ndim > lse.ndim:
        row, token = jnp.indices(lse.shape)[..., None]
        of_logits = (of_nll.sum(-1) + of_lse)[..., None] * probability
        return of_logits.at[row, token, column].add(jnp.where(local, -of_nll, 0.0)), None
    hit = (jnp.arange(logits.shape[-1]) == column[..., None]) & local[..., None]
    return (of_nll + of_lse)[..., None] * probability - jnp.where(hit, of_nll[..., None], 0.0), None


vocabulary_cross_entropy.defvjp(_forward, _backward)
