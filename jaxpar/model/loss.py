"""Cross-entropy over a vocabulary that is split over mesh axes, without ever gathering the logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.mesh.collectives import reduce_max, reduce_sum
from pallas_kernels.vjp_parts import custom_vjp


@custom_vjp(2)
def vocabulary_cross_entropy(
    logits: Float[Array, "batch seq local_vocab"], labels: Int[Array, "batch seq"], axes: tuple[str, ...]
) -> tuple[Float[Array, "batch seq"], Float[Array, "batch seq"]]:
    """Negative log-likelihood of `labels` and log-sum-exp, in nats; the same on every rank of `axes`.

    `labels` are ids of the full vocabulary; rank r of `axes` holds columns [r * local_vocab, (r + 1) * local_vocab).
    The derivative saves the logits and one number per token. Sends three floats per token (a maximum and two sums).
    Source: Megatron-LM (arXiv:1909.08053, section 3).
    """
    return _forward(logits, labels, axes)[0]


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
    picked = jnp.take_along_axis(logits, column[..., None], axis=-1)[..., 0]
    label = reduce_sum(jnp.where(local, picked, 0.0), axes)
    return (lse - label, lse), (logits, labels, lse)


def _backward(
    axes: tuple[str, ...], residuals: tuple[jax.Array, jax.Array, jax.Array], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None]:
    (logits, labels, lse), (of_nll, of_lse) = residuals, cotangents
    column, local = _local_label(axes, logits, labels)
    probability = jnp.exp(logits - lse[..., None])
    hit = (jnp.arange(logits.shape[-1]) == column[..., None]) & local[..., None]
    return (of_nll + of_lse)[..., None] * probability - jnp.where(hit, of_nll[..., None], 0.0), None


vocabulary_cross_entropy.defvjp(_forward, _backward)
