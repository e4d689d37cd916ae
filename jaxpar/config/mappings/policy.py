"""The mapping `loss.policy`: settings of a loss of drawn answers and their rewards, each a published choice."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from jaxpar.config.bounds import SHARE, at_least

Baseline = Literal["group_std", "group", "leave_one_out"]
Clip = Literal["ppo", "gspo", "cispo_absolute", "cispo_relative", "aipo"]
Average = Literal["sequence", "token", "length"]
Kl = Literal["none", "k1", "k2", "k3", "k3_with_k2_gradient"]
Mismatch = Literal["none", "truncated", "masked_sequence", "icepop", "masked_negative"]


@dataclass(frozen=True)
class PolicyConfig:
    """Settings of a loss of answers that the model draws. Null is what `loss.name` publishes.

    r is the probability of a token relative to that before the updates from an answer, w that before them relative to
    the one that the answer was drawn with, A the advantage.
    """

    baseline: Baseline | None = None
    """Advantage of an answer in its group: reward less the mean, over the standard deviation (`group_std`), or not
    (`group`), or reward less the mean of the others (`leave_one_out`)."""
    std_epsilon: Annotated[float, at_least(1e-12, 1)] | None = None
    """Added to the standard deviation: 1e-4 in TRL, 1e-6 in verl, tunix and NeMo-RL."""
    clip: Clip | None = None
    """`ppo`: min(r A, clip(r, 1 - low, 1 + high) A). `gspo`: the same with the geometric mean of r over an answer.
    `cispo_absolute`: min(r, high) A as a constant times the log-probability (TRL); `cispo_relative`: with
    clip(r, 1 - low, 1 + high) (verl, NeMo-RL). `aipo`: min(r w, high), relative to what drew the answer."""
    low: Annotated[float, at_least(0, 1)] | None = None
    """Limit below of `clip`."""
    high: Annotated[float, at_least(0, 1e6)] | None = None
    """Limit above of `clip`."""
    dual: Annotated[float, at_least(0, 1e6)] | None = None
    """Largest multiple of -A that an answer with A < 0 costs (dual clip, about 3); 0 sets no limit."""
    average: Average | None = None
    """`sequence`: mean over answers of the mean over their tokens; `token`: mean over all tokens of the step; `length`:
    sum over tokens divided by answers times `rl.answer_tokens`."""
    kl: Kl | None = None
    """Penalty for leaving the reference, by token: k1 = log p - log q; k2 = k1^2 / 2; k3 = exp(-k1) + k1 - 1, or its
    value with the gradient of k2, which is not biased. The reference q is `loss.reference`."""
    kl_weight: Annotated[float, at_least(0, 1e6)] | None = None
    """Factor of the penalty."""
    kl_in: Literal["loss", "reward"] | None = None
    """Whether the penalty is added to the loss, or its sum over an answer is taken off the answer's reward."""
    entropy: Annotated[float, at_least(0, 1e6)] | None = None
    """Weight of a term of the loss that keeps the entropy of tokens up, as estimated by -log p."""
    mismatch: Mismatch | None = None
    """Correction where sampler and step disagree. `truncated` multiplies a token by min(w, mismatch_high); `icepop`
    multiplies by w, or by 0 outside of mismatch_low to mismatch_high. `masked_sequence` leaves out answers whose
    product of w is above mismatch_high, `masked_negative` those with A < 0 and a mean of -log(r w) above it."""
    mismatch_low: Annotated[float, at_least(0, 1e6)] | None = None
    """Lower limit of `mismatch`."""
    mismatch_high: Annotated[float, at_least(0, 1e6)] | None = None
    """Upper limit of `mismatch`."""
    drop_equal: bool | None = None
    """Leave out groups whose answers all have the same reward."""
    overlong: Annotated[float, SHARE] | None = None
    """Last share of `rl.answer_tokens` over which the reward falls linearly by 1; 0 takes nothing off."""


@dataclass(frozen=True)
class Policy:
    """`PolicyConfig` with a value for every setting."""

    baseline: Baseline = "group_std"
    std_epsilon: float = 1e-4
    clip: Clip = "ppo"
    low: float = 0.2
    high: float = 0.2
    dual: float = 0.0
    average: Average = "sequence"
    kl: Kl = "none"
    kl_weight: float = 0.04
    kl_in: Literal["loss", "reward"] = "loss"
    entropy: float = 0.0
    mismatch: Mismatch = "none"
    mismatch_low: float = 0.5
    mismatch_high: float = 2.0
    drop_equal: bool = False
    overlong: float = 0.0


PRESETS: dict[str, Policy] = {
    "grpo": Policy(),
    "dr_grpo": Policy(baseline="group", average="length"),
    "dapo": Policy(high=0.28, average="token", drop_equal=True, overlong=0.2),
    "gspo": Policy(clip="gspo", low=3e-4, high=4e-4),
    "cispo": Policy(clip="cispo_absolute", high=5.0, average="token"),
    "aipo": Policy(baseline="group", clip="aipo", high=4.0, average="token"),
    "rloo": Policy(baseline="leave_one_out", average="token"),
}
"""Presets by `loss.name`: DeepSeekMath (arXiv:2402.03300), Dr. GRPO (arXiv:2503.20783), DAPO (arXiv:2503.14476), GSPO
(arXiv:2507.18071), CISPO of MiniMax-M1 (arXiv:2506.13585), AIPO of LlamaRL (arXiv:2505.24034) and RLOO
(arXiv:2402.14740). No preset has a penalty, as in TRL."""


def policy_of(loss: Any) -> Policy:
    """The settings of a loss of drawn answers: what `loss.name` publishes, with what `loss.policy` sets."""
    written = {one.name: getattr(loss.policy, one.name) for one in fields(PolicyConfig)}
    return replace(PRESETS[loss.name], **{name: value for name, value in written.items() if value is not None})
