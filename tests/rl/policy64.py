"""Losses of drawn answers in float64, an answer at a time, from their papers and from TRL and verl; the derivatives by
log-probabilities are by hand. No code is shared with jaxpar.

An answer has log-probabilities `p` of the model, `q` before the updates, `s` of the sampler and `ref` of the reference,
and an advantage `a`. Options have the names of `loss.policy`.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def answer_loss(p: Any, q: Any, s: Any, ref: Any, a: float, o: dict[str, Any]) -> tuple[Any, Any]:
    """The loss of each token of an answer, and the derivative of the sum of all by each token's log-probability."""
    n = len(p)
    ratio = np.exp(p - q)
    if o["clip"] == "ppo":
        loss, slope = surrogate(ratio, a, o)
    elif o["clip"] == "gspo":
        one, by_ratio = surrogate(np.exp(np.mean(p - q)) * np.ones(1), a, o)
        loss, slope = np.full(n, one[0]), np.full(n, by_ratio[0])  # n equal losses, each token 1 / n of the exponent
    else:
        relative = o["clip"] == "cispo_relative"
        limits = (1 - o["low"], 1 + o["high"]) if relative else (0.0, o["high"])
        factor = np.clip(np.exp(p - s) if o["clip"] == "aipo" else ratio, *limits)
        loss, slope = -factor * a * p, -factor * a
    weight = sampler_weight(q - s, p - s, a, o)
    loss, slope = loss * weight, slope * weight
    if o["clip"] == "gspo":
        slope = np.full(n, np.mean(slope))
    penalty, by_p = divergence(p - ref, o["kl"])
    # The gradient of the entropy is that of the mean of -log p weighted by log p: Williams and Peng 1991.
    return loss + o["kl_weight"] * penalty + o["entropy"] * p, slope + o["kl_weight"] * by_p + o["entropy"] * p


def surrogate(ratio: Any, a: float, o: dict[str, Any]) -> tuple[Any, Any]:
    """PPO's, and its derivative by the logarithm of the ratio."""
    clipped = np.clip(ratio, 1 - o["low"], 1 + o["high"])
    loss = np.where(ratio * a <= clipped * a, -ratio * a, -clipped * a)
    slope = np.where(ratio * a <= clipped * a, -ratio * a, 0.0)
    if o["dual"] and a < 0:
        slope = np.where(loss > -o["dual"] * a, 0.0, slope)
        loss = np.minimum(loss, -o["dual"] * a)
    return loss, slope


def divergence(k1: Any, kl: str) -> tuple[Any, Any]:
    """Schulman's estimators of log p - log ref, and the derivative by log p; inputs here are within the limits."""
    k2, k3 = k1**2 / 2, np.exp(-k1) + k1 - 1
    return {
        "none": (0 * k1, 0 * k1), "k1": (k1, np.ones_like(k1)), "k2": (k2, k1), "k3": (k3, 1 - np.exp(-k1)),
        "k3_with_k2_gradient": (k3, k1),
    }[kl]  # fmt: skip


def sampler_weight(q_s: Any, p_s: Any, a: float, o: dict[str, Any]) -> Any:
    w, low, high = np.exp(q_s), o["mismatch_low"], o["mismatch_high"]
    match o["mismatch"]:
        case "truncated":
            return np.minimum(w, high)
        case "icepop":
            return np.where((w < low) | (w > high), 0.0, w)
        case "masked_sequence":
            return np.zeros_like(w) if np.prod(w) > high else np.ones_like(w)
        case "masked_negative":
            return np.zeros_like(w) if a < 0 and np.mean(-p_s) > high else np.ones_like(w)
    return np.ones_like(w)
