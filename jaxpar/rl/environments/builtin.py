"""Environments that come with jaxpar, and what one of a user's file has to be.

An environment is a class without arguments, made anew for each rollout. Messages are mappings with a `role` and a
`content`, a text that follows the one before it as it is: an environment spells out the template of a chat, as prompts
do, in messages with `special_tokens: True`; in others the names of special tokens are text. Made again with the same
record and the same messages, it must do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.config.user_code import is_user_code, load_function
from jaxpar.rl.environments.tools import ToolCalls, tool_of

type Message = Mapping[str, Any]


class Environment(Protocol):
    """An environment answers the model in a conversation."""

    def reset(self, record: Mapping[str, Any]) -> Sequence[Message]:
        """Begin with a prompt and its columns: messages between the prompt and the model's first turn, if any."""
        ...

    def step(self, messages: Sequence[Message]) -> tuple[Sequence[Message], float, bool]:
        """Observations after the model's turn, which is the last message; its reward; whether the conversation ended.

        The rewards of all turns are added. Observations of the last turn are not read by anyone.
        """
        ...


class Guess:
    """The model guesses the column `answer`, a number from 1 to 9, a digit a turn, and hears `<`, `=` or `>` of it.

    A right guess is worth 1, less 0.15 for each turn before it.
    """

    def reset(self, record: Mapping[str, Any]) -> Sequence[Message]:
        """Nothing is said before the first guess."""
        self._answer, self._turn = int(record["answer"]), 0
        return []

    def step(self, messages: Sequence[Message]) -> tuple[Sequence[Message], float, bool]:
        """Compare the answer with a guess; what is no digit is not compared."""
        guess, self._turn = messages[-1]["content"].strip(), self._turn + 1
        if len(guess) != 1 or guess not in "123456789":
            return [{"role": "environment", "content": "?"}], 0.0, False
        if int(guess) == self._answer:
            return [], 1 - 0.15 * (self._turn - 1), True
        return [{"role": "environment", "content": "<" if self._answer < int(guess) else ">"}], 0.0, False


ENVIRONMENTS: dict[str, Callable[[], Environment]] = {"guess": Guess}
"""Environments by their name in `rl.environment`; `tools` is made of `rl.tools`."""
TOOLS = "tools"


def check_environment(name: str) -> None:
    """Refuse a name of `rl.environment` without running any code of the user's. Raises `UserError`."""
    names = [*ENVIRONMENTS, TOOLS]
    if not is_user_code(name) and name not in names:
        near = did_you_mean(name, names) or f"; there are {', '.join(names)} and FILE.py:NAME"
        raise UserError(f"rl.environment: no environment is called {quoted(name)}{near}")


def environment_of(name: str, tools: Sequence[str]) -> Callable[[], Environment]:
    """A function that makes the environment of a rollout. Raises `UserError` where there is no such class, or tool."""
    if name == TOOLS:
        functions: dict[str, Callable[..., Any]] = {}
        for tool in tools:
            called, function = tool_of(tool)
            if called in functions:
                raise UserError(f"rl.tools: several are called {quoted(called)}; expected a name for each")
            functions[called] = function
        return lambda: ToolCalls(functions)
    if not is_user_code(name):
        return ENVIRONMENTS[name]
    made = load_function(name, "rl.environment", what="class")
    missing = [method for method in ("reset", "step") if not callable(getattr(made, method, None))]
    if not isinstance(made, type) or missing:
        what = f"has no method {missing[0]}" if isinstance(made, type) else "is no class"
        raise UserError(f"rl.environment: {quoted(name)} {what}; expected a class with reset and step")
    return made
