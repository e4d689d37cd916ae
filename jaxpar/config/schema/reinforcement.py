"""The section `rl`: answers that the model draws, and their rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from jaxpar.config.bounds import POSITIVE, ROWS, SEQUENCE, at_least
from jaxpar.config.mappings.sampler import SamplerConfig


@dataclass(frozen=True)
class RlConfig:
    """Answers that the model draws, with `data.source: prompts` and a `loss.name` that has rewards."""

    prompts: Annotated[int, at_least(1, ROWS)] = 16
    """Prompts of a batch, whose answers are drawn together."""
    group: Annotated[int, at_least(1, ROWS)] = 8
    """Answers to each prompt."""
    answer_tokens: Annotated[int, at_least(1, SEQUENCE)] = 64
    """Most tokens of an answer, its end included; with an environment, of all that follows a prompt."""
    temperature: Annotated[float, POSITIVE] = 1.0
    """Divides the logits of draws. All log-probabilities of answers are those at this temperature, in the loss, its
    reference and the metrics, as in TRL and verl: what is trained is the distribution that draws. Evaluations take the
    likeliest tokens."""
    minibatches: Annotated[int, at_least(1, ROWS)] = 1
    """Parts of a batch of answers, by prompts: each is a step of its own. `data.batch_size` has room for one."""
    epochs: Annotated[int, at_least(1, 1000)] = 1
    """Number of passes over a batch of answers (`num_iterations` in TRL, `ppo_epochs` in verl). After the first
    step, the ratios of the loss are relative to the weights before it."""
    mode: Literal["sync", "one_step_off", "async"] = "sync"
    """`sync` draws a batch of answers with the weights that learn from it next; `one_step_off` while the one before it
    is learned from, so with weights that are a version older; `async` up to `staleness` batches ahead. A version of the
    weights is what they are after the steps of a batch."""
    staleness: Annotated[int, at_least(1, 1000)] | None = None
    """Under `async`, how many versions older than the trained weights those that drew a batch may be. Older batches are
    left out, and counted in `dropped`."""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """The mesh on which answers are drawn."""
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
