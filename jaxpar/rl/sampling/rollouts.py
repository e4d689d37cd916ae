"""Batches of answers with the version of the weights that drew them, in memory and as bytes of a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxpar.rl.advantages import ByAnswer
from jaxpar.rl.answers import Answer
from jaxpar.rl.prompts import Prompt


@dataclass(frozen=True)
class Rollouts:
    """The answers to a batch of prompts, those to one prompt side by side, and their rewards."""

    index: int
    """The index of the batch of prompts, on which the draws depend."""
    version: int
    """The number of batches that the weights had learned from."""
    answers: Sequence[Answer]
    rewards: ByAnswer
    draw_seconds: float
    reward_seconds: float
    idle_seconds: float
    """Seconds that the sampler waited before it began."""

    @property
    def tokens(self) -> int:
        """Tokens that the model drew."""
        return sum(one.size for one in self.answers)


@dataclass(frozen=True)
class SavedRollouts:
    """The batches of answers that a run has drawn and not learned from to the end."""

    following: int
    """The index of the next batch of prompts."""
    dropped: int
    """Batches that were too old to be learned from."""
    waiting: Sequence[Rollouts]
    """The batches, in the order in which they are learned from."""
    current: Rollouts | None = None
    """The batch of which some steps were taken, if any."""
    before: Sequence[np.ndarray] | None = None
    """Log-probabilities of the answers of `current` before those steps."""

    def to_bytes(self) -> bytes:
        """The contents of a file, for `from_bytes`."""
        batches = [*([] if self.current is None else [self.current]), *self.waiting]
        arrays = {"counters": np.array([self.following, self.dropped, len(batches), self.current is not None])}
        for at, one in enumerate(batches):
            arrays |= {f"{at}.{name}": values for name, values in _arrays(one).items()}
        if self.before is not None:
            arrays["before"] = np.concatenate(self.before)
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, prompts: Callable[[int], Sequence[Prompt]]) -> SavedRollouts:
        """The batches in a file; `prompts` gives those of a batch by its index."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            following, dropped, size, is_current = map(int, arrays["counters"])
            batches = [_rollouts({name: arrays[f"{at}.{name}"] for name in _NAMES}, prompts) for at in range(size)]
            current = batches.pop(0) if is_current else None
            before = None
            if current is not None and "before" in arrays:
                splits = np.cumsum([len(one.tokens) for one in current.answers])[:-1]
                before = np.split(arrays["before"], splits)
        return cls(following, dropped, batches, current, before)


_NAMES = (
    "facts", "seconds", "rewards", "tokens", "lengths", "ended", "log_probabilities", "turns", "turn_counts",
    "environment_rewards", "without_room", "routing",
)  # fmt: skip


def _arrays(batch: Rollouts) -> dict[str, np.ndarray]:
    """The arrays of rollouts by their name in `_NAMES`."""
    answers = batch.answers
    values = (
        np.array([batch.index, batch.version]),
        np.array([batch.draw_seconds, batch.reward_seconds, batch.idle_seconds]),
        batch.rewards,
        np.concatenate([np.array(one.tokens, np.int32) for one in answers]),
        np.array([len(one.tokens) for one in answers]),
        np.array([one.ended for one in answers]),
        np.concatenate([one.log_probabilities for one in answers]),
        np.array([turn for one in answers for turn in one.turns or ()], np.int32).reshape(-1, 2),
        np.array([-1 if one.turns is None else len(one.turns) for one in answers]),
        np.array([one.reward for one in answers]),
        np.array([one.without_room for one in answers]),
        np.concatenate([np.zeros(0, np.int32) if one.routing is None else one.routing for one in answers]),
    )
    return dict(zip(_NAMES, values, strict=True))


def _rollouts(arrays: Mapping[str, np.ndarray], prompts: Callable[[int], Sequence[Prompt]]) -> Rollouts:
    index, version = map(int, arrays["facts"])
    splits, group = np.cumsum(arrays["lengths"])[:-1], arrays["rewards"].shape[1]
    asked = [prompt for prompt in prompts(index) for _ in range(group)]
    read = np.array([len(prompt.tokens) - 1 for prompt in asked]) + arrays["lengths"]
    routed = len(arrays["routing"]) > 0
    parts = zip(
        asked,
        np.split(arrays["tokens"], splits),
        np.split(arrays["log_probabilities"], splits),
        arrays["ended"],
        arrays["turn_counts"],
        np.split(arrays["turns"], np.cumsum(np.maximum(arrays["turn_counts"], 0))[:-1]),
        arrays["environment_rewards"],
        arrays["without_room"],
        np.split(arrays["routing"], np.cumsum(read)[:-1]) if routed else [None] * len(asked),
        strict=True,
    )
    answers = [
        Answer(
            prompt, tuple(tokens.tolist()), likely, bool(ended),
            None if turn_count < 0 else tuple((int(first), int(end)) for first, end in turns), float(reward),
            bool(without_room), routing,
        )
        for prompt, tokens, likely, ended, turn_count, turns, reward, without_room, routing in parts
    ]  # fmt: skip
    return Rollouts(index, version, answers, arrays["rewards"], *map(float, arrays["seconds"]))
