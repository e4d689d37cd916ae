"""Rewards to advantages, and the weights by which a loss averages tokens; NumPy alone."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from jaxpar.config.mappings.policy import Policy

type ByAnswer = Float[np.ndarray, "prompt group"]
"""A number for each answer; NaN where it has no reward."""


def advantages(rewards: ByAnswer, policy: Policy, raw: ByAnswer | None = None) -> ByAnswer:
    """The advantage of each answer in its group; NaN where it is left out.

    Left out are answers without a reward, answers that are alone in their group, and under `drop_equal` groups whose
    rewards are all equal: `raw` ones, before penalties, where there are some.
    """
    valid = ~np.isnan(rewards)
    size = valid.sum(axis=1, keepdims=True)
    mean = np.where(valid, rewards, 0).sum(axis=1, keepdims=True) / np.maximum(size, 1)
    centred = rewards - mean
    match policy.baseline:
        case "group_std":
            squares = np.where(valid, centred, 0) ** 2
            deviation = np.sqrt(squares.sum(axis=1, keepdims=True) / np.maximum(size - 1, 1))
            made = centred / (deviation + policy.std_epsilon)
        case "leave_one_out":
            made = centred * size / np.maximum(size - 1, 1)
        case _:
            made = centred
    left_out = ~valid | (size < 2)
    if policy.drop_equal:
        compared = rewards if raw is None else raw
        widest = np.where(valid, compared, -np.inf).max(axis=1) - np.where(valid, compared, np.inf).min(axis=1)
        left_out |= (widest <= 0)[:, None]
    return np.where(left_out, np.nan, made)


def overlong_penalty(lengths: Int[np.ndarray, "prompt group"], most: int, share: float) -> Float[np.ndarray, "..."]:
    """The penalty of each answer for its length: from 0 to 1 over the last `share` of the tokens that it may have."""
    last = share * most
    return np.clip((lengths - (most - last)) / last, 0, 1) if last else np.zeros(lengths.shape)


def token_weights(lengths: Int[np.ndarray, " answers"], most: int, average: str) -> Float[np.ndarray, " answers"]:
    """The weight of the tokens of each answer, where the loss divides their sum by the number of all tokens.

    Args:
        lengths: tokens of the answers that a step learns from.
        most: tokens that an answer may have.
        average: see `PolicyConfig.average`.
    """
    total, answers = lengths.sum(), max(1, len(lengths))
    match average:
        case "sequence":
            return total / (answers * lengths)
        case "length":
            return np.full(len(lengths), total / (answers * most))
        case _:
            return np.ones(len(lengths))
