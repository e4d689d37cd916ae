"""The reward of an answer: a weighted sum of reward functions, each of which runs in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property

from jaxpar.config.errors import UserError
from jaxpar.rl.records import Record
from jaxpar.rl.rewards.process import RewardProcess
from jaxpar.rl.worker_process import WorkerError
from jaxpar.training.errors import TrainingError


class Rewarder:
    """Reward functions with their weights.

    Args:
        weights: the weight of each reward function, by its name.
        seconds: time limit of a call of a function, which rewards all answers to one prompt.
        stops: a failure ends the run; otherwise answers without a reward are NaN, and not trained on.
        required: nothing else rewards answers.

    Raises:
        UserError: there are no reward functions, and `required` is set.
    """

    def __init__(self, weights: Mapping[str, float], seconds: float, *, stops: bool, required: bool = True):
        if required and not weights:
            raise UserError("rl.rewards: there is none; expected a reward with its weight, as {exact: 1.0}")
        self._weights, self._seconds, self._stops = weights, seconds, stops
        self.failure = "the reward functions returned None"
        """Message of the last failure."""
        self._logged: set[str] = set()

    @cached_property
    def processes(self) -> list[RewardProcess]:
        """The process of each reward function."""
        return [RewardProcess(name, self._seconds) for name in self._weights]

    def start(self) -> None:
        """Start the processes. Raises `UserError` if a reward function does not exist or cannot be imported."""
        self.processes  # noqa: B018 (starts them)

    def close(self) -> None:
        """End the processes that were started; the next answers start others."""
        for process in vars(self).get("processes", ()):
            process.close()

    def rewards(self, records: Sequence[Record], texts: Sequence[str]) -> list[float]:
        """The reward of each answer to a prompt; NaN where a function returned None or failed.

        Raises `TrainingError` for such an answer if `stops` is set.

        Args:
            records: the record of the prompt, once for each answer.
            texts: the answers.
        """
        columns = {key: [one[key] for one in records] for key in records[0] if key != "prompt"}
        prompts, totals = [one["prompt"] for one in records], [0.0] * len(texts)
        for process, weight in zip(self.processes, self._weights.values(), strict=True):
            try:
                values = process.rewards(prompts, list(texts), columns)
            except WorkerError as error:
                values = self._failed(str(error), len(texts))
            if None in values and self._stops:
                raise TrainingError(f"a reward is missing or not finite ({process.name}): the run stopped")
            totals = [
                total + weight * (float("nan") if one is None else one)
                for total, one in zip(totals, values, strict=True)
            ]
        return totals

    def _failed(self, reason: str, answers: int) -> list[None]:
        if self._stops:
            raise TrainingError(f"a reward failed ({reason}): the run stopped")
        self.failure = reason
        if reason not in self._logged:  # once, not for each group of each step
            self._logged.add(reason)
            logging.getLogger(__name__).warning("%s; its answers are not trained on (metric without_reward).", reason)
        return [None] * answers
