"""A reward in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxpar.rl.rewards.builtin import check_reward
from jaxpar.rl.worker_process import WorkerError, WorkerProcess


class RewardProcess:
    """A reward by its name, `FILE.json` or `FILE.py:NAME`, in a process of its own.

    Args:
        name: the reward.
        seconds: longest time for the answers to a prompt.

    Raises:
        UserError: there is no such reward, or its file fails.
    """

    def __init__(self, name: str, seconds: float):
        check_reward(name)
        self.name = name
        self._worker = WorkerProcess("jaxpar.rl.rewards.worker", [name], name, "rl.rewards", seconds)

    def rewards(
        self, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """The reward of each answer; None where the function gives none, or no finite one. Raises `WorkerError`."""
        made = self._worker.ask({"prompts": prompts, "completions": completions, "columns": columns})["rewards"]
        if len(made) != len(completions):
            raise WorkerError(f"{self.name}: {len(made)} rewards for {len(completions)} answers")
        return made

    def close(self) -> None:
        """End the process; the next answers begin another."""
        self._worker.close()
