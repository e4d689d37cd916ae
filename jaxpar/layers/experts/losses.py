"""Auxiliary losses of routers, each a function of sums over the whole microbatch, in float32.

A loss of the sums of all ranks is not a sum of losses of ranks. So each rank reports its share such that the shares add
up to the loss, and their derivatives to its derivative: `share`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.layers.experts.routing import Logits, Loss, Sums
from jaxpar.mesh.collectives import reduce_sum

ROW_AXES = ("context", "tensor")
"""Axes whose ranks have different tokens of the same rows."""


def balance_loss(sums: Sums) -> Float[Array, ""]:
    """`E * sum_e f_e P_e` of the share f of the choices and the mean probability P of each of E experts: 1 where all
    are equal (Switch Transformer, arXiv:2101.03961, equations 4-6; choices as in DeepSeekMoE, arXiv:2401.06066)."""
    shares = sums.counts / jnp.maximum(sums.counts.sum(), 1.0)
    means = sums.statistics["probabilities"] / jnp.maximum(sums.tokens, 1.0)
    return len(shares) * jnp.sum(shares * means)


def gshard_loss(sums: Sums) -> Float[Array, ""]:
    """`1/E * sum_e (c_e / S) m_e` of the tokens c whose first choice an expert is, of S, and the mean probability m
    (GShard, arXiv:2006.16668, algorithm 1)."""
    tokens = jnp.maximum(sums.tokens, 1.0)
    first, means = lax.stop_gradient(sums.statistics["first"]) / tokens, sums.statistics["probabilities"] / tokens
    return jnp.mean(first * means)


def importance_and_load_loss(sums: Sums) -> Float[Array, ""]:
    """`CV(importance)^2 + CV(load)^2`: squared coefficients of variation of the sums of gates, and of the
    probabilities with which noise would choose each expert (arXiv:1701.06538, equations 6-11)."""
    return _variation(sums.statistics["gates"]) + _variation(sums.statistics["load"])


def sam_loss(sums: Sums) -> Float[Array, ""]:
    """`balance_loss` plus the alignment loss: the sum of what probabilities outside a token's group exceed the least
    chosen one by, averaged over tokens. SAM (arXiv:2110.07431) as HetuMoE (arXiv:2203.14685) computes it, which sums
    the one over choices and the other over tokens."""
    return balance_loss(sums) + sums.statistics["misaligned"][0] / jnp.maximum(sums.tokens, 1.0)


def _variation(x: Float[Array, " experts"]) -> Float[Array, ""]:
    mean = jnp.mean(x)
    return jnp.mean(jnp.square(x - mean)) / jnp.maximum(jnp.square(mean), 1e-20)


def z_loss(logits: Logits, counts: Float[Array, " tokens"]) -> Float[Array, ""]:
    """The sum of `logsumexp(logits)^2` over the tokens that count (ST-MoE, arXiv:2202.08906, equation 5)."""
    return jnp.sum(counts * jnp.square(jax.nn.logsumexp(logits, axis=-1)))


def share(loss: Loss, own: Sums, whole: Sums, ranks: int) -> Float[Array, ""]:
    """This rank's share of `loss(whole)`, of which `own` are this rank's parts of the sums.

    The value is an equal share. The derivative is that of the loss at `whole` with respect to `own`: no rank needs
    those of the others.
    """
    value, slopes = jax.value_and_grad(lambda statistics: loss(whole._replace(statistics=statistics)))(
        lax.stop_gradient(whole.statistics)
    )
    linear = sum(jnp.sum(slopes[name] * (part - lax.stop_gradient(part))) for name, part in own.statistics.items())
    return value / ranks + linear


def sequence_loss(
    indices: Int[Array, "rows part chosen"],
    probabilities: Float[Array, "rows part experts"],
    counts: Float[Array, "rows part"],
) -> Float[Array, ""]:
    """This rank's share of the sum over tokens of the `balance_loss` of their row (DeepSeek-V3, arXiv:2412.19437,
    equations 17-20). A row's tokens are all in one microbatch, so the sum does not depend on the microbatches."""
    one_hot = indices[..., None] == jnp.arange(probabilities.shape[-1])
    chosen = jnp.sum(jnp.where(one_hot, counts[..., None, None], 0.0), axis=(1, 2))
    own = Sums(counts.sum(1), chosen, {"probabilities": jnp.einsum("rt,rte->re", counts, probabilities)})
    whole = jax.tree.map(lambda leaf: reduce_sum(lax.stop_gradient(leaf), ROW_AXES), own)
    of_row = lambda own, whole: whole.tokens * share(balance_loss, own, whole, lax.axis_size(ROW_AXES))
    return jnp.sum(jax.vmap(of_row)(own, whole))
