"""The reward of an answer: a weighted sum of reward functions, each of which runs in processes of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from queue import SimpleQueue

from jaxpar.config.errors import UserError
from jaxpar.rl.records import Record
from jaxpar.rl.rewards.process import RewardProcess
from jaxpar.rl.worker_process import WorkerError
from jaxpar.training.errors import TrainingError

PROCESSES = 8
"""Processes of a slow reward function, at most."""
SLOW = 2.0
"""Seconds that one process would take for what is left of a batch, from which on others are started."""

type Group = tuple[Sequence[Record], Sequence[str]]
"""Answers to a prompt: its record, once for each of them, and their texts."""


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
    def processes(self) -> dict[str, list[RewardProcess]]:
        """The processes of each reward function: one, and others once it was slow."""
        return {name: [RewardProcess(name, self._seconds)] for name in self._weights}

    def start(self) -> None:
        """Start the processes. Raises `UserError` if a reward function does not exist or cannot be imported."""
        self.processes  # noqa: B018 (starts them)

    def close(self) -> None:
        """End the processes that were started; the next answers start others."""
        for processes in vars(self).get("processes", {}).values():
            for process in processes:
                process.close()

    def rewards(self, groups: Sequence[Group]) -> list[list[float]]:
        """The reward of each answer of groups; NaN where a function returned None or failed.

        Raises `TrainingError` for such an answer if `stops` is set.
        """
        totals = [[0.0] * len(texts) for _, texts in groups]
        for name, weight in self._weights.items():
            for at, values in enumerate(self._values(name, groups)):
                if isinstance(values, WorkerError):
                    values = self._failed(str(values), len(totals[at]))
                if None in values and self._stops:
                    raise TrainingError(f"a reward is missing or not finite ({name}): the run stopped")
                totals[at] = [
                    total + weight * (float("nan") if one is None else one)
                    for total, one in zip(totals[at], values, strict=True)
                ]
        return totals

    def _values(self, name: str, groups: Sequence[Group]) -> list[list[float | None] | WorkerError]:
        """The rewards of a function for each group, or how it failed. Groups are asked in order, several of them at the
        same time where one after another is slow: a function that asks a judge waits for most of its time."""
        processes, (first, *others), began = self.processes[name], groups, time.monotonic()
        values = [_asked(processes[0], first)]
        with ThreadPoolExecutor(PROCESSES) as threads:
            if (time.monotonic() - began) * len(others) > SLOW:
                more = min(PROCESSES, len(others)) - len(processes)
                processes += threads.map(lambda _: RewardProcess(name, self._seconds), range(more))
            idle: SimpleQueue[RewardProcess] = SimpleQueue()
            for process in processes:
                idle.put(process)
            return values + list(threads.map(partial(_asked_of, idle), others))

    def _failed(self, reason: str, answers: int) -> list[None]:
        if self._stops:
            raise TrainingError(f"a reward failed ({reason}): the run stopped")
        self.failure = reason
        if reason not in self._logged:  # once, not for each group of each step
            self._logged.add(reason)
            logging.getLogger(__name__).warning("%s; its answers are not trained on (metric without_reward).", reason)
        return [None] * answers


def _asked_of(idle: SimpleQueue[RewardProcess], group: Group) -> list[float | None] | WorkerError:
    """`_asked` of a process that is idle."""
    process = idle.get()
    try:
        return _asked(process, group)
    finally:
        idle.put(process)


def _asked(process: RewardProcess, group: Group) -> list[float | None] | WorkerError:
    """The rewards of a function for a group, or how it failed."""
    records, texts = group
    columns = {key: [one[key] for one in records] for key in records[0] if key != "prompt"}
    try:
        return process.rewards([one["prompt"] for one in records], list(texts), columns)
    except WorkerError as error:
        return error
