"""The environment `tools`: functions that the model calls from its text, in the format of Qwen and Hermes."""

from __future__ import annotations

import ast
import inspect
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, quoted
from jaxpar.config.strict_json import json_text
from jaxpar.config.user_code import is_user_code, load_function

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
LONGEST_EXPRESSION = 200
"""Characters that `calculate` reads."""


class ToolCalls:
    """Answers `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` with `<tool_response>...</tool_response>`, in
    a message for all calls of a turn; a turn without a call ends the conversation. Rewards are those of `rl.rewards`.

    Nothing of a model's chat template is around the responses, nor behind them to begin its next turn: a model that was
    trained on one hears what it has not seen.

    What a tool raises, or a call that is none, is said in the response.
    """

    def __init__(self, tools: Mapping[str, Callable[..., object]]):
        self._tools = tools

    def reset(self, record: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
        """Nothing is said before the first turn: a prompt describes the tools."""
        return []

    def step(self, messages: Sequence[Mapping[str, str]]) -> tuple[Sequence[Mapping[str, str]], float, bool]:
        """The responses to the calls of the last message."""
        calls = _CALL.findall(messages[-1]["content"])
        said = "".join(f"<tool_response>{self._response(call)}</tool_response>\n" for call in calls)
        return [{"role": "tool", "content": said}] * bool(calls), 0.0, not calls

    def _response(self, text: str) -> str:
        try:
            call = json.loads(text)
            made = self._tools[call["name"]](**call["arguments"])
            return made if isinstance(made, str) else json_text(made)
        except Exception as error:
            return f"error: {type(error).__name__}: {error}"


def calculate(expression: str) -> float:
    """The value of an expression of numbers, parentheses and + - * / // %. Raises `ValueError` for another."""
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"an expression has at most {LONGEST_EXPRESSION} characters")
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(operand))
    raise ValueError("expected numbers, parentheses and + - * / // %")


FUNCTIONS: dict[str, Callable[..., object]] = {"calculate": calculate}
"""Functions by their name in `rl.tools`."""


def tool_of(name: str) -> tuple[str, Callable[..., object]]:
    """The name by which the model calls a tool, and its function. Raises `UserError` where it is none."""
    if not is_user_code(name):
        if name not in FUNCTIONS:
            near = did_you_mean(name, FUNCTIONS) or f"; there are {', '.join(FUNCTIONS)} and FILE.py:NAME"
            raise UserError(f"rl.tools: no tool is called {quoted(name)}{near}")
        return name, FUNCTIONS[name]
    function = load_function(name, "rl.tools")
    if not inspect.isroutine(function):
        raise UserError(f"rl.tools: {quoted(name)} is no function, but {type(function).__name__}")
    return name.rpartition(":")[2], function
