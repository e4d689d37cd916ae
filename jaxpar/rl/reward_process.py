"""Rewards from a process of their own, which is ended where it takes too long."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.config.strict_json import json_text
from jaxpar.rl.rewards import check_reward

START_SECONDS = 120.0
"""Longest time that the import of a reward may take."""


class RewardError(Exception):
    """Answers to a prompt have no reward; the text says why."""


class RewardProcess:
    """A reward by its name, or `FILE.py:NAME`, in a process of its own.

    Args:
        name: the reward.
        seconds: longest time for the answers to a prompt.

    Raises:
        UserError: there is no such reward, or its file fails.
    """

    def __init__(self, name: str, seconds: float):
        check_reward(name)
        self.name, self._seconds = name, seconds
        self._begin()

    def rewards(
        self, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """The reward of each answer; None where the function gives none, or no finite one. Raises `RewardError`."""
        if self._process.poll() is not None:
            self.close()
            try:
                self._begin()
            except UserError as error:  # its file has changed
                raise RewardError(str(error)) from None
        request = json_text({"prompts": prompts, "completions": completions, "columns": columns})
        try:
            assert self._process.stdin is not None, "it is a pipe"
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except OSError:
            raise RewardError(f"{self.name}: its process ended") from None
        answer = self._read(self._seconds)
        if "error" in answer:
            raise RewardError(f"{self.name}: {answer['error']}")
        made = answer["rewards"]
        if len(made) != len(completions):
            raise RewardError(f"{self.name}: {len(made)} rewards for {len(completions)} answers")
        return made

    def close(self) -> None:
        """End the process; the next answers begin another."""
        self._end()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "jaxpar.rl.reward_worker", self.name]
        # In a session of its own, so that Ctrl-C reaches the run alone, which then closes its pipe.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_put_lines, args=(self._process, self._lines), daemon=True)
        reader.start()
        self._end = weakref.finalize(self, _end, self._process, reader)
        try:
            answer = self._read(START_SECONDS)
        except RewardError as error:
            raise UserError(f"rl.rewards: {error}") from None
        if "error" in answer:
            self.close()
            raise UserError(answer["error"])

    def _read(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.close()
            limit = "rl.reward_seconds" if seconds == self._seconds else "its import"
            raise RewardError(f"{self.name}: it took more than {seconds:g} s ({limit})") from None
        if not line:
            raise RewardError(f"{self.name}: its process ended with exit code {self._process.wait()}")
        try:
            return json.loads(line)
        except ValueError:
            self.close()
            raise RewardError(f"{self.name}: it wrote {quoted(line.strip()[:80])} between its answers") from None


def _end(process: subprocess.Popen[str], reader: threading.Thread) -> None:
    """End a process with those that it began, and close its pipes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session
    process.wait()
    reader.join(timeout=5)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None, "both are pipes"
        with suppress(OSError):  # what was not sent yet is lost with the process
            pipe.close()


def _put_lines(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """The lines that a process prints, and an empty one at its end."""
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        lines.put(line)
    lines.put("")
