"""The process in which environments run: `python -m jaxpar.rl.environments.worker ENVIRONMENT TOOLS ...`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxpar.rl.environments.builtin import Environment, environment_of
from jaxpar.rl.worker_process import serve

MODEL = "assistant"
"""The role of the model's messages."""


class Rollouts:
    """The environments of rollouts.

    A request has the whole conversation: an environment that is not known, since the process began anew,
    is led to the same point first.
    """

    def __init__(self, make: Callable[[], Environment]):
        self._make = make
        self._open: dict[int, Environment] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Reset where the model has said nothing yet, else a step."""
        rollout, messages = request["rollout"], request["messages"]
        for other in request["ended"]:
            self._open.pop(other, None)
        turns = [at + 1 for at, one in enumerate(messages) if one["role"] == MODEL]
        known = self._open.pop(rollout, None)  # it stays away where it raises
        if not turns or known is None:
            known = self._make()
            said = _texts(known.reset(request["record"]), "reset")
            for end in turns[:-1]:
                _step(known, messages[:end])
            if not turns:
                self._open[rollout] = known
                return {"observations": said}
        observations, reward, ended = _step(known, messages)
        if not ended:
            self._open[rollout] = known
        return {"observations": observations, "reward": reward, "ended": ended}


def _step(environment: Environment, messages: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], float, bool]:
    made = environment.step(messages)
    if not isinstance(made, Sequence) or len(made) != 3:
        raise TypeError(f"step returned {_shown(made)}; expected (observations, reward, ended)")
    observations, reward, ended = made
    if isinstance(reward, str) or reward is None or not math.isfinite(reward):
        raise TypeError(f"step returned a reward of {_shown(reward)}; expected a finite number")
    return _texts(observations, "step"), float(reward), bool(ended)


def _texts(messages: Any, method: str) -> list[dict[str, str]]:
    valid = isinstance(messages, Sequence) and all(
        isinstance(one, Mapping) and isinstance(one.get("content"), str) for one in messages
    )
    if not valid:
        raise TypeError(f"{method} returned observations {_shown(messages)}; expected a list of role and content")
    made = [
        {
            "role": str(one.get("role", "environment")),
            "content": one["content"],
            "special_tokens": bool(one.get("special_tokens", False)),
        }
        for one in messages
    ]
    if any(one["role"] == MODEL for one in made):
        raise TypeError(f"{method} returned an observation with the role {MODEL}, which is the model's")
    return made


def _shown(value: Any) -> str:
    return repr(value)[:80]


def main(name: str, *tools: str) -> None:
    """Answer requests until standard input ends."""
    serve(lambda: Rollouts(environment_of(name, tools)).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
