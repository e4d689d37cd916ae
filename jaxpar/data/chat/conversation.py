"""A conversation from a line of JSON: `messages`, or a `prompt` and its `completion`."""

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
        messages, tools = value["messages"], value.get("tools")
        if not isinstance(messages, list) or not messages:
            raise Unusable("`messages` is not a list with messages")
        if tools is not None and not isinstance(tools, list):
            raise Unusable("`tools` is not a list")
        found = Conversation([_message(number, each) for number, each in enumerate(messages, 1)], tools)
    elif "prompt" in value and "completion" in value:
        for name in ("prompt", "completion"):
            if not isinstance(value[name], str):
                raise Unusable(f"the value of `{name}` is not text")
        found = Conversation(
            [{"role": "user", "content": value["prompt"]}, {"role": ASSISTANT, "content": value["completion"]}]
        )
    else:
        names = ", ".join(quoted(name, 40) for name in list(value)[:8])
        raise Unusable(f"neither `messages` nor `prompt` and `completion` (it has {names or 'none'})")
    if all(message["role"] != ASSISTANT for message in found.messages):
        raise Unusable(f"no message of the role `{ASSISTANT}`, so there is nothing to train on")
    return found


def _message(number: int, value: Any) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise Unusable(f"message {number} is not an object with a `role`")
    content = value.get("content")
    if not isinstance(content, str) and (content is not None or not value.get("tool_calls")):
        raise Unusable(f"the `content` of message {number} is not text")
    return value
