"""Conversations of a model with environments: all of a batch take their turns together."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config import Config, UserError
from jaxpar.data.text import Encode
from jaxpar.generation.generator import Continuation
from jaxpar.rl.answers import Answer
from jaxpar.rl.environments.builtin import check_environment
from jaxpar.rl.environments.worker import MODEL
from jaxpar.rl.prompts import Prompt, codec_of
from jaxpar.rl.worker_process import WorkerError, WorkerProcess
from jaxpar.training.errors import TrainingError


class Draw(Protocol):
    """Continues texts, as `Generator.continued` does."""

    def __call__(
        self, prompts: Sequence[Sequence[int]], tokens: int, *, on_token: Callable[[int, int], bool]
    ) -> list[Continuation]: ...


@dataclass
class _Rollout:
    """A conversation as far as it is."""

    prompt: Prompt
    index: int
    tokens: list[int] = field(default_factory=list)
    """Tokens after the prompt."""
    log_probabilities: list[float] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    reward: float = 0.0
    is_open: bool = True
    """Whether the model has another turn."""
    without_room: bool = False
    """Whether there is none for what is said next."""
    turn_ended: bool = False
    """Whether the token that ends answers ended the last turn."""

    def answer(self) -> Answer:
        return Answer(
            self.prompt, tuple(self.tokens), np.array(self.log_probabilities), self.turn_ended, tuple(self.turns),
            self.reward, self.without_room,
        )  # fmt: skip


class Conversations:
    """An environment in a process of its own, and the limits of conversations with it.

    Args:
        name: `rl.environment`.
        tools: `rl.tools`.
        turns: most turns of the model.
        tokens: most tokens after a prompt, observations included.
        seconds: longest time for a step.
        stops: whether an environment that fails ends the run; else its rollout is left out.
        encode: a text that follows others to tokens; names of special tokens in it are text, unless it is asked.
        decode: tokens to a text.

    Raises:
        UserError: there is no such environment.
    """

    def __init__(
        self, name: str, tools: Sequence[str], *, turns: int, tokens: int, seconds: float, stops: bool,
        encode: Encode, decode: Callable[[Sequence[int]], str],
    ):  # fmt: skip
        check_environment(name)
        self._name, self._turns, self._tokens, self._stops = name, turns, tokens, stops
        self._encode, self._decode = encode, decode
        self._indices = itertools.count()
        self._ended: list[int] = []
        """Rollouts that the process may forget."""
        self.failure: str | None = None
        """The last failure of an environment, in words."""
        self._told: set[str] = set()
        self._begin = lambda: WorkerProcess(
            "jaxpar.rl.environments.worker", [name, *tools], name, "rl.environment", seconds
        )

    @cached_property
    def _worker(self) -> WorkerProcess:
        return self._begin()

    def start(self) -> None:
        """Begin the process. Raises `UserError` where there is no such class or tool, or its file fails."""
        self._worker  # noqa: B018 (begins it)

    def close(self) -> None:
        """End the process, if it was started; the next step starts another."""
        if "_worker" in vars(self):
            self._worker.close()

    def answers(self, prompts: Sequence[Prompt], end: int, draw: Draw) -> list[Answer]:
        """A conversation after each prompt.

        Every call of `draw` has all prompts: the row of a conversation numbers its draws, which then do not depend on
        when another ends. Rows of conversations that have ended are cut after a token. Raises `TrainingError` where an
        environment fails, if that is to end the run.
        """
        rollouts = [_Rollout(one, next(self._indices)) for one in prompts]
        for one in rollouts:
            said = one.prompt.record["prompt"]
            one.messages += [{"role": "user", "content": said}] if isinstance(said, str) else said
        self._ask(rollouts)
        taking = [True] * len(rollouts)  # those whose environment failed at once, too: an answer has a turn
        while any(taking):
            self._take_turns(rollouts, taking, end, draw)
            self._ask([one for one in rollouts if one.is_open])
            taking = [one.is_open for one in rollouts]
        self._ended = [one.index for one in rollouts]
        return [one.answer() for one in rollouts]

    def _take_turns(self, rollouts: Sequence[_Rollout], taking: Sequence[bool], end: int, draw: Draw) -> None:
        """Draw the next turn of conversations."""
        pairs = list(zip(rollouts, taking, strict=True))
        left = [max(1, self._tokens - len(one.tokens)) if take else 1 for one, take in pairs]
        drawn = [0] * len(rollouts)

        def is_full(row: int, token: int) -> bool:
            drawn[row] += 1
            return drawn[row] >= left[row]

        texts = [(*one.prompt.tokens, *one.tokens) if take else one.prompt.tokens[:1] for one, take in pairs]
        for (one, take), made in zip(pairs, draw(texts, max(left), on_token=is_full), strict=True):
            if not take:
                continue
            first, one.turn_ended = len(one.tokens), made.ending is not None
            one.messages.append({"role": MODEL, "content": self._decode(made.tokens.tolist())})
            one.tokens += [*made.tokens.tolist(), *([end] if one.turn_ended else [])]
            one.log_probabilities += [*made.log_probabilities, *([] if made.ending is None else [made.ending])]
            one.turns.append((first, len(one.tokens)))

    def _ask(self, rollouts: Sequence[_Rollout]) -> None:
        """Let the environments of rollouts answer, in the process that has them; every process hears the same."""
        answers: list[dict[str, Any]] = run_on_process_0(lambda: [self._answer(one) for one in rollouts])
        for one, made in zip(rollouts, answers, strict=True):
            said: list[int] = made.get("tokens", [])
            has_room = len(one.tokens) + len(said) < self._tokens
            if not one.turns and not has_room:
                made["error"] = f"{self._name}: rl.answer_tokens: {self._tokens} has no room for what reset says"
            if "error" in made:
                one.is_open, one.reward = False, float("nan")
                self._failed(made["error"])
                continue
            one.reward += float(made.get("reward", 0.0))
            goes_on = len(one.turns) < self._turns and not made.get("ended", False)
            one.is_open, one.without_room = goes_on and has_room, goes_on and not has_room
            if one.is_open:
                one.messages += made["observations"]
                one.tokens += said
                one.log_probabilities += [0.0] * len(said)

    def _answer(self, one: _Rollout) -> dict[str, Any]:
        request = {"rollout": one.index, "record": one.prompt.record, "messages": one.messages, "ended": self._ended}
        self._ended = []
        try:
            made = self._worker.ask(request)
        except WorkerError as error:
            return {"error": str(error)}
        if made.get("ended"):
            return made  # nobody reads what is said last
        try:
            return made | {"tokens": [token for message in made["observations"] for token in self._encoded(message)]}
        except (UserError, UnicodeError) as error:
            return {"error": f"{self._name}: an observation has no tokens ({error})"}

    def _encoded(self, message: Mapping[str, Any]) -> Sequence[int]:
        return self._encode(message["content"], special_tokens=message["special_tokens"])

    def _failed(self, why: str) -> None:
        if self._stops:
            raise TrainingError(f"an environment failed ({why}): the run stopped")
        self.failure = why
        if why not in self._told:  # once, not for each rollout of each step
            self._told.add(why)
            logging.getLogger(__name__).warning("%s; its rollout is left out, and counted.", why)


def conversations_of(config: Config) -> Conversations | None:
    """The conversations of a configuration, if it has an environment. Raises `UserError` where there is no such one."""
    rl = config.rl
    if rl.environment is None:
        return None
    codec = codec_of(config.data)
    return Conversations(
        rl.environment, rl.tools, turns=rl.turns, tokens=rl.answer_tokens, seconds=rl.reward_seconds,
        stops=rl.on_reward_error == "stop", encode=codec.encode, decode=codec.decode,
    )  # fmt: skip
