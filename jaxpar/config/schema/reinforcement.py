"""The section `rl`: answers that the model draws, and their rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.bounds import POSITIVE, ROWS, SEQUENCE, at_least


@dataclass(frozen=True)
class RlConfig:
    """Answers that the model draws, with `data.source: prompts` and a `loss.name` that has rewards."""

    prompts: Annotated[int, at_least(1, ROWS)] = 16
    """Prompts of a step."""
    group: Annotated[int, at_least(1, ROWS)] = 8
    """Answers to each prompt."""
    answer_tokens: Annotated[int, at_least(1, SEQUENCE)] = 64
    """Most tokens of an answer, its end included; with an environment, of all that follows a prompt."""
    environment: str | None = None
    """The other side of a conversation of several turns: `guess` or `tools`, or `FILE.py:NAME`, a class with
    `reset` and `step`: its code is run. Null makes an answer the only turn."""
    turns: Annotated[int, at_least(1, 1000)] = 4
    """Most turns of the model in a conversation with `environment`."""
    tools: tuple[str, ...] = ()
    """Functions that the model may call with `environment: tools`: `calculate`, or `FILE.py:NAME`: its code is run."""
    rewards: dict[str, float] = field(default_factory=dict, hash=False)
    """Rewards with their weights: those that come with jaxpar by name, or `FILE.py:NAME`, a function as TRL has them,
    `f(prompts, completions, **columns) -> list[float | None]`: its code is run, or `FILE.json`, a JSON Schema. Empty
    takes those of the task."""
    reward_seconds: Annotated[float, POSITIVE] = 60.0
    """Longest time that a reward may take for the answers to a prompt, or an environment for a turn."""
    on_reward_error: Literal["skip", "stop"] = "skip"
    """Whether answers without a finite reward are left out and counted, or end the run."""
