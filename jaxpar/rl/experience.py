"""A batch of answers with all that the loss reads of them, and the parts of it that single steps learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxpar.config.mappings.policy import Policy
from jaxpar.config.schema.reinforcement import RlConfig
from jaxpar.rl.advantages import ByAnswer, advantages, overlong_penalty, token_weights
from jaxpar.rl.answers import Learned
from jaxpar.rl.sampling.rollouts import Rollouts

SOURCE = "source"
"""The column of prompts by which rewards are reported apart."""


@dataclass(frozen=True)
class Experience:
    """A batch of answers with their advantages."""

    rollouts: Rollouts
    advantages: ByAnswer
    """NaN for answers that are left out."""
    references: Sequence[np.ndarray]
    """The reference's log-probabilities of each answer; zeros without one."""
    before: Sequence[np.ndarray] | None
    """The model's log-probabilities of each answer before the first step; None where one step learns from each."""

    def learned(self, step: int, rl: RlConfig, policy: Policy) -> list[Learned]:
        """The answers that a step learns from: `step` counts from 0 in this batch."""
        prompts = rl.prompts // rl.minibatches
        first = step % rl.minibatches * prompts * rl.group
        answers, each = self.rollouts.answers, self.advantages.reshape(-1)
        chosen = [at for at in range(first, first + prompts * rl.group) if not np.isnan(each[at])]
        lengths = np.array([answers[at].size for at in chosen])
        weights = token_weights(lengths, rl.answer_tokens, policy.average)
        before = [None] * len(answers) if self.before is None or not step else self.before
        return [
            Learned(answers[at], float(each[at]), float(weight), self.references[at], before[at])
            for at, weight in zip(chosen, weights, strict=True)
        ]

    def metrics(self) -> dict[str, float]:
        """Means over the answers; without any reward there is no mean of them."""
        answers, rewards = self.rollouts.answers, self.rollouts.rewards
        means = {
            "answer_tokens": self.rollouts.tokens / len(answers),
            "truncated": float(np.mean([one.truncated for one in answers])),
            "without_reward": float(np.isnan(rewards).mean()),
            "left_out": float(np.isnan(self.advantages).mean()),
            "draw_seconds": self.rollouts.draw_seconds,
            "reward_seconds": self.rollouts.reward_seconds,
            "sampler_wait_seconds": self.rollouts.idle_seconds,
            "drawn_tokens_per_second": self.rollouts.tokens / max(self.rollouts.draw_seconds, 1e-9),
        }
        if not np.isnan(rewards).all():
            spread = [np.nanstd(group) for group in rewards if not np.isnan(group).all()]
            means |= {"reward": float(np.nanmean(rewards)), "reward_spread": float(np.mean(spread))}
        return means | self._reward_by_source()

    def _reward_by_source(self) -> dict[str, float]:
        """The mean reward of each source, where prompts have one."""
        by_source: dict[str, list[float]] = {}
        for answer, reward in zip(self.rollouts.answers, self.rollouts.rewards.reshape(-1), strict=True):
            if (source := answer.prompt.record.get(SOURCE)) is not None and not np.isnan(reward):
                by_source.setdefault(str(source).replace(".", "_"), []).append(reward)
        return {f"reward_of_{source}": float(np.mean(some)) for source, some in sorted(by_source.items())}


def experience_of(
    rollouts: Rollouts, references: Sequence[np.ndarray], before: Sequence[np.ndarray] | None, rl: RlConfig,
    policy: Policy,
) -> Experience:  # fmt: skip
    """The advantages of answers, from their rewards less the penalties that are taken off rewards."""
    raw, answers = rollouts.rewards, rollouts.answers
    lengths = np.array([len(one.tokens) for one in answers]).reshape(raw.shape)  # the limit has observations, too
    rewards = raw - overlong_penalty(lengths, rl.answer_tokens, policy.overlong)
    if policy.kl_in == "reward" and policy.kl != "none":
        pairs = zip(answers, references, strict=True)
        k1 = [float((one.log_probabilities - other)[one.drawn].sum()) for one, other in pairs]
        rewards = rewards - policy.kl_weight * np.reshape(k1, raw.shape)
    return Experience(rollouts, advantages(rewards, policy, raw), references, before)
