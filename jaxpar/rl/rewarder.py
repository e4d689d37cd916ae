"""The reward of an answer: a weighted sum of rewards, each from a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property

from jaxpar.config.errors import UserError
from jaxpar.rl.records import Record
from jaxpar.rl.reward_process import RewardError, RewardProcess
from jaxpar.training.errors import TrainingError


class Rewarder:
    """Rewards by name with their weights.

    Args:
        weights: of each reward.
        seconds: longest time of one for the answers to a prompt.
        stops: whether a reward that fails ends the run; else its answers are left out.

    Raises:
        UserError: there are no rewards.
    """

    def __init__(self, weights: Mapping[str, float], seconds: float, *, stops: bool):
        if not weights:
            raise UserError("rl.rewards: there is none; expected a reward with its weight, as {exact: 1.0}")
        self._weights, self._seconds, self._stops = weights, seconds, stops
        self.failure = "their functions gave none"
        """The last failure of a reward, in words."""
        self._told: set[str] = set()

    @cached_property
    def processes(self) -> list[RewardProcess]:
        """The process of each reward."""
        return [RewardProcess(name, self._seconds) for name in self._weights]

    def start(self) -> None:
        """Begin the processes. Raises `UserError` where a reward is wrong."""
        self.processes  # noqa: B018 (begins them)

    def close(self) -> None:
        """End the processes; the next answers begin others."""
        for process in self.processes:
            process.close()

    def rewards(self, records: Sequence[Record], texts: Sequence[str]) -> list[float]:
        """The reward of each answer to a prompt; NaN for one without.

        Raises `TrainingError` where one fails, if that is to end the run.
        """
        columns = {key: [one[key] for one in records] for key in records[0] if key != "prompt"}
        prompts, totals = [one["prompt"] for one in records], [0.0] * len(texts)
        for process, weight in zip(self.processes, self._weights.values(), strict=True):
            try:
                made = process.rewards(prompts, list(texts), columns)
            except RewardError as error:
                made = self._failed(str(error), len(texts))
            if None in made and self._stops:
                raise TrainingError(f"a reward is missing or not finite ({process.name}): the run stopped")
            totals = [
                total + weight * (float("nan") if one is None else one) for total, one in zip(totals, made, strict=True)
            ]
        return totals

    def _failed(self, why: str, answers: int) -> list[None]:
        if self._stops:
            raise TrainingError(f"a reward failed ({why}): the run stopped")
        self.failure = why
        if why not in self._told:  # once, not for each group of each step
            self._told.add(why)
            logging.getLogger(__name__).warning("%s; its answers are left out, and counted.", why)
        return [None] * answers
