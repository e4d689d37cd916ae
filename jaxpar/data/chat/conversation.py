"""Conversations from a line of JSON: `messages`, or a `prompt` and its `completion`; or a pair, chosen and rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxpar.config.spelling import quoted

type Message = dict[str, Any]
"""`role` and `content`, and what else a template may use (`tool_calls`, `name`, ...)."""

ASSISTANT = "assistant"


class Unusable(ValueError):
    """Why a conversation cannot be used."""


@dataclass(frozen=True)
class Conversation:
    """Messages in turn."""

    messages: list[Message]
    tools: list[Any] | None = None
    """Descriptions of functions, for templates that render them."""

    def request(self) -> dict[str, Any]:
        """What a template is rendered with."""
        return {"messages": self.messages} | ({} if self.tools is None else {"tools": self.tools})


def conversation_of(value: dict[str, Any]) -> Conversation:
    """The conversation of an object. Raises `Unusable`, with the reason, where there is none to train on."""
    if "messages" in value:
        found = Conversation(_messages("messages", value["messages"]), _tools(value))
    elif "prompt" in value and "completion" in value:
        for name in ("prompt", "completion"):
            if not isinstance(value[name], str):
                raise Unusable(f"the value of `{name}` is not text")
        found = Conversation(
            [{"role": "user", "content": value["prompt"]}, {"role": ASSISTANT, "content": value["completion"]}]
        )
    else:
        raise Unusable(f"neither `messages` nor `prompt` and `completion` (it has {_names(value)})")
    if all(message["role"] != ASSISTANT for message in found.messages):
        raise Unusable(f"no message of the role `{ASSISTANT}`, so there is nothing to train on")
    return found


@dataclass(frozen=True)
class Pair:
    """Two conversations that begin alike."""

    chosen: Conversation
    rejected: Conversation
    prompt: int
    """Messages with which both begin."""


def pair_of(value: dict[str, Any]) -> Pair:
    """The pair of an object: a `prompt` with two answers, `chosen` and `rejected`, as text or as messages.

    Without a `prompt`, the answers are whole conversations, and the prompt is what they have in common; so are those
    that begin with the message of the user that the `prompt` is. Raises `Unusable`, with the reason.
    """
    for name in (CHOSEN, REJECTED):
        if name not in value:
            raise Unusable(f"no `{name}` (it has {_names(value)})")
    prompt, tools = value.get("prompt"), _tools(value)
    chosen, rejected = (_answer(name, value[name]) for name in (CHOSEN, REJECTED))
    whole = not isinstance(value[CHOSEN], str) and not isinstance(value[REJECTED], str)
    first = [{"role": "user", "content": prompt}]
    if prompt is None and not whole:
        raise Unusable("no `prompt`, and the answers are text")
    if prompt is None or (whole and isinstance(prompt, str) and chosen[:1] == rejected[:1] == first):
        common = _common(chosen, rejected)
        before, chosen, rejected = chosen[:common], chosen[common:], rejected[common:]
        if not before:
            raise Unusable("`chosen` and `rejected` begin with different messages, and there is no other prompt")
    else:
        before = first if isinstance(prompt, str) else _messages("prompt", prompt)
    if chosen == rejected:
        raise Unusable("`chosen` and `rejected` are the same")
    for name, answer in ((CHOSEN, chosen), (REJECTED, rejected)):
        if all(message["role"] != ASSISTANT for message in answer):
            raise Unusable(f"`{name}` has no message of the role `{ASSISTANT}` after the prompt")
    return Pair(Conversation([*before, *chosen], tools), Conversation([*before, *rejected], tools), len(before))


CHOSEN, REJECTED = "chosen", "rejected"


def _common(chosen: list[Message], rejected: list[Message]) -> int:
    """Messages with which both begin."""
    alike = [one == other for one, other in zip(chosen, rejected, strict=False)]
    return alike.index(False) if False in alike else len(alike)


def _answer(name: str, value: Any) -> list[Message]:
    return [{"role": ASSISTANT, "content": value}] if isinstance(value, str) else _messages(name, value)


def _messages(name: str, value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        what = "is not a list with messages" if name == "messages" else "is neither text nor a list with messages"
        raise Unusable(f"`{name}` {what}")
    return [_message(number, each) for number, each in enumerate(value, 1)]


def _tools(value: dict[str, Any]) -> list[Any] | None:
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise Unusable("`tools` is not a list")
    return tools


def _names(value: dict[str, Any]) -> str:
    return ", ".join(quoted(name, 40) for name in list(value)[:8]) or "none"


def _message(number: int, value: Any) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise Unusable(f"message {number} is not an object with a `role`")
    content = value.get("content")
    if not isinstance(content, str) and (content is not None or not value.get("tool_calls")):
        raise Unusable(f"the `content` of message {number} is not text")
    return value
