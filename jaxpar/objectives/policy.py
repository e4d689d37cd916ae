"""Losses of answers that the model draws, weighted by advantages: GRPO and its kin; `jaxpar.config.mappings.policy` has
the settings and their sources.

With p the probability of a token, q that before the updates from an answer, s the one that the answer was drawn with:

    r = p / q        w = q / s        loss of a token = -min(r A, clip(r, 1 - low, 1 + high) A) w' + kl_weight KL

for `clip: ppo`; w' is w within the limits of `mismatch`, without a derivative. All are at `rl.temperature`. The step's
loss is the sum over tokens times the weight that `average` gives them, divided by the number of tokens.

Each answer is a document of its row with its prompt; the mask has its tokens, not those of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxpar.config.mappings.policy import Policy, policy_of
from jaxpar.config.schema import Config
from jaxpar.mesh.collectives import reduce_sum
from jaxpar.runtime.batch import Field
from jaxpar.runtime.objective import Head, Objective

TOKENS = ("kl", "clipped", "entropy", "mismatch_kl", "mismatch_share", "importance", "importance_squared")
"""Means over tokens: the penalty; the share at a limit of `clip`; -log p, an estimate of the entropy; of sampler and
step w - log w - 1, the share with |log w| > log 2, and w and its square, whose effective share of samples is the
first squared over the second."""

type ByToken = Float[Array, "row token"]


class Drawn(NamedTuple):
    """Tokens of answers and the facts of their drawing; 0 at other tokens."""

    mask: ByToken
    segments: Int[Array, "row token"]
    advantage: ByToken
    weight: ByToken
    before: ByToken
    """log q; NaN is the current log p: this is the first update from the answers."""
    sampled: ByToken
    """log s, the sampler's log-probability of each token."""
    reference: ByToken
    """The log-probability of each token under the reference model."""


class PolicyGradient(Objective):
    """The policy gradient of drawn answers."""

    reports = TOKENS

    def __init__(self, config: Config):
        self._policy, self._temperature = policy_of(config.loss), config.rl.temperature
        policy = self._policy
        self.fields = (
            *Objective.fields, *(Field(name, "float32") for name in ("advantage", "weight", "before", "sampled")),
            *([Field("reference", "float32")] if policy.kl != "none" else []),
        )  # fmt: skip
        penalty = "" if policy.kl == "none" else f"; {policy.kl} of weight {policy.kl_weight:g}"
        mismatch = "" if policy.mismatch == "none" else f"; {policy.mismatch} mismatch"
        self.description = (
            f"{policy.baseline} baseline; {policy.clip} from {policy.low:g} to {policy.high:g}; mean by "
            f"{policy.average}{penalty}{mismatch}; answers: {config.rl.mode}"
        )

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The effective share of samples of w: 1 where all are equal."""
        return {"effective_samples": means["importance"] ** 2 / means["importance_squared"]}

    def loss(self, head: Head, batch: dict[str, jax.Array]) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """See `Objective.loss`. Sends over context some floats for each answer that a row has room for, where `gspo` or
        a mask of whole answers needs them."""
        drawn = Drawn(
            batch["mask"], batch["segments"], batch["advantage"], batch["weight"], batch["before"], batch["sampled"],
            batch.get("reference", jnp.zeros_like(batch["mask"])),
        )  # fmt: skip
        head = head.with_temperature(self._temperature)
        current = head.log_probabilities(batch["labels"])
        total = lambda current: _sums(current, drawn, self._policy)
        (loss, means), slope = jax.value_and_grad(total, has_aux=True)(current)
        return head.cross_entropy(batch["labels"], -slope)[0], {"loss": loss} | means


def _sums(current: ByToken, drawn: Drawn, policy: Policy) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The loss of this rank's tokens, and the sums of `TOKENS`, from the current log-probabilities."""
    mask, fixed = drawn.mask > 0, lax.stop_gradient(current)
    before = jnp.where(jnp.isnan(drawn.before), fixed, drawn.before)
    log_ratio = jnp.where(mask, current - before, 0)
    log_weight = jnp.where(mask, before - drawn.sampled, 0)
    loss, clipped = token_loss(log_ratio, log_weight, jnp.where(mask, current, 0), drawn, policy)
    penalty = jnp.where(mask, divergence(current - drawn.reference, policy.kl), 0)
    loss = loss * mismatch_weight(log_weight, lax.stop_gradient(log_ratio), drawn, policy)
    if policy.kl_in == "loss":
        loss = loss + policy.kl_weight * penalty
    loss = loss + policy.entropy * _with_slope(fixed, fixed, current)  # the mean of -log p has the slope log p
    w = jnp.exp(log_weight)
    means = penalty, clipped, -fixed, w - log_weight - 1, jnp.abs(log_weight) > jnp.log(2.0), w, w * w
    sums = {name: jnp.sum(jnp.where(mask, value, 0.0)) for name, value in zip(TOKENS, means, strict=True)}
    return jnp.sum(jnp.where(mask, drawn.weight * loss, 0)), lax.stop_gradient(sums)


def token_loss(
    log_ratio: ByToken, log_weight: ByToken, current: ByToken, drawn: Drawn, policy: Policy
) -> tuple[ByToken, ByToken]:
    """The loss of each token without penalty, and whether a limit holds it."""
    advantage, low, high = drawn.advantage, 1 - policy.low, 1 + policy.high
    if policy.clip in ("ppo", "gspo"):
        ratio = jnp.exp(_answer_mean(log_ratio, drawn) if policy.clip == "gspo" else log_ratio)
        within = jnp.clip(ratio, low, high)
        loss = -jnp.minimum(ratio * advantage, within * advantage)
        if policy.dual:
            loss = jnp.where(advantage < 0, jnp.minimum(loss, -policy.dual * advantage), loss)
        return loss, within * advantage < ratio * advantage
    if policy.clip == "aipo":
        ratio, low, high = jnp.exp(log_ratio + log_weight), 0.0, policy.high
    else:
        ratio = jnp.exp(log_ratio)
        low, high = (0.0, policy.high) if policy.clip == "cispo_absolute" else (low, high)
    within = jnp.clip(lax.stop_gradient(ratio), low, high)
    return -within * advantage * current, within != lax.stop_gradient(ratio)


def divergence(k1: ByToken, kl: str) -> ByToken:
    """An estimate of the divergence from the reference, from log p - log q. Its exponent is within +-20, its value
    within +-10 (TRL, verl)."""
    bounded = lambda value: jnp.clip(value, -10, 10)
    k1 = jnp.clip(k1, -20, 20)
    k2, k3 = k1**2 / 2, jnp.exp(-k1) + k1 - 1
    if kl == "k3_with_k2_gradient":
        return _with_slope(bounded(k3), k1, k1)
    return {"none": jnp.zeros_like(k1), "k1": bounded(k1), "k2": bounded(k2), "k3": bounded(k3)}[kl]


def _with_slope(value: ByToken, slope: ByToken, x: ByToken) -> ByToken:
    """`value`, with the derivative `slope` by `x`."""
    return lax.stop_gradient(value) + lax.stop_gradient(slope) * (x - lax.stop_gradient(x))


def mismatch_weight(log_weight: ByToken, log_ratio: ByToken, drawn: Drawn, policy: Policy) -> ByToken:
    """The factor of each token's loss for what sampler and step disagree about, without a derivative."""
    w, low, high = jnp.exp(log_weight), policy.mismatch_low, policy.mismatch_high
    match policy.mismatch:
        case "truncated":
            return jnp.minimum(w, high)
        case "icepop":
            return jnp.where((w >= low) & (w <= high), w, 0)
        case "masked_sequence":
            return jnp.where(_answer_sum(log_weight, drawn) > jnp.log(high), 0.0, 1.0)
        case "masked_negative":
            away = -_answer_mean(log_weight + log_ratio, drawn)
            return jnp.where((drawn.advantage < 0) & (away > high), 0.0, 1.0)
        case _:
            return jnp.ones_like(w)


def _answer_sum(values: ByToken, drawn: Drawn) -> ByToken:
    """At each token the sum over its answer, of all context ranks."""
    rows, length = values.shape
    room = lax.axis_size("context") * length + 1
    # Padding goes to a document that there is no room for: an index of -1 would be that of the last one.
    row, document = jnp.arange(rows)[:, None], jnp.where(drawn.segments > 0, drawn.segments - 1, room)
    sums = jnp.zeros((rows, room), values.dtype).at[row, document].add(values * drawn.mask, mode="drop")
    sums = reduce_sum(sums, ("context",))
    return jnp.take_along_axis(sums, document, axis=1, mode="fill", fill_value=0)


def _answer_mean(values: ByToken, drawn: Drawn) -> ByToken:
    """At each token the mean over its answer."""
    return _answer_sum(values, drawn) / jnp.maximum(_answer_sum(jnp.ones_like(values), drawn), 1)
