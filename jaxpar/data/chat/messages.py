"""Messages of conversations: what a role says, and whether the loss counts it."""

from __future__ import annotations

import json

from jaxpar.config.spelling import quoted

type Message = dict[str, object]
"""`role` and `content`, and what else a template may use (`tool_calls`, `name`, ...)."""

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
"""Roles of messages."""
WEIGHT, TRAIN = LOSS_KEYS = "weight", "train"
"""Keys of a message that say whether the loss counts it: 0 or 1, as in OpenAI's format, and false or true."""


class Unusable(ValueError):
    """The reason why a conversation cannot be used."""


def checked_messages(name: str, value: object) -> list[Message]:
    """The messages in a list, or `Unusable`; `name` is its key."""
    if not isinstance(value, list) or not value:
        what = "is not a list with messages" if name == "messages" else "is neither text nor a list with messages"
        raise Unusable(f"`{name}` {what}")
    return [checked_message(number, each) for number, each in enumerate(value, 1)]


def checked_message(number: int, value: object, content_key: str = "content") -> Message:
    """A message, or `Unusable`; `number` and `content_key` are for the reason."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise Unusable(f"message {number} is not an object with a `role`")
    value = _from_openai(value)
    content = value.get("content")
    if not isinstance(content, str) and (content is not None or not value.get("tool_calls")):
        raise Unusable(f"the `{content_key}` of message {number} is not text")
    _check_trained(number, value)
    return value


def _from_openai(message: Message) -> Message:
    """A message in OpenAI's format, as templates expect it: parts of text joined, the arguments of calls as objects,
    and the earlier `function_call` and role `function` as calls of tools."""
    message = dict(message)
    if isinstance(parts := message.get("content"), list):
        texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
            message["content"] = "".join(map(str, texts))
    if call := message.pop("function_call", None):
        message["tool_calls"] = [{"type": "function", "function": call}]
    if message["role"] == "function":
        message["role"] = "tool"
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_with_arguments(call) for call in calls]
    return message


def _with_arguments(call: object) -> object:
    """A call with its arguments as an object, where they are the JSON text of one."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def is_trained(message: Message) -> bool:
    """Whether the loss counts what a message of the assistant says."""
    return message.get(WEIGHT) != 0 and message.get(TRAIN) is not False


def _check_trained(number: int, message: Message) -> None:
    for key, types, expected in ((WEIGHT, (int, float), "0 or 1"), (TRAIN, (bool,), "false or true")):
        value = message.get(key)
        if value is None:
            continue
        if type(value) not in types or value not in (0, 1):
            raise Unusable(f"the `{key}` of message {number} is {quoted(value, 40)}; expected {expected}")
        if value and message["role"] != ASSISTANT:
            raise Unusable(
                f"message {number} has `{key}`, and only messages of the role `{ASSISTANT}` are trained on; it is of "
                f"the role {quoted(message['role'], 40)}"
            )


def key_names(record: dict[str, object]) -> str:
    """The first keys of a record, for messages."""
    return ", ".join(quoted(name, 40) for name in list(record)[:8]) or "none"
