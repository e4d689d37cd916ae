"""Forms of records that hold a conversation: `messages`, a prompt with its completion, ShareGPT's, and Alpaca's.

ShareGPT: `{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], "system": "..."}`.
Alpaca: `{"instruction": "...", "input": "...", "output": "...", "system": "..."}`, where `input` may be absent.
Records of OpenAI's fine-tuning and of Tülu have `messages`.
"""

from __future__ import annotations

from jaxpar.config.spelling import quoted
from jaxpar.data.chat.messages import (
    ASSISTANT,
    SYSTEM,
    USER,
    Message,
    Unusable,
    checked_message,
    checked_messages,
    key_names,
)

SHAREGPT_ROLES = {
    "human": USER, "user": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "assistant": ASSISTANT, "model": ASSISTANT,
    "system": SYSTEM, "tool": "tool", "observation": "tool",
}  # fmt: skip
"""Values of `from` in ShareGPT's records to the roles of templates."""
FORMS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt": ("prompt", "completion"),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
}
"""Forms to the keys by which a record is recognized."""


def form_of(record: dict[str, object]) -> str | None:
    """The form of a record: the first of `FORMS` whose keys it has."""
    return next((form for form, keys in FORMS.items() if all(key in record for key in keys)), None)


def messages_of(record: dict[str, object]) -> list[Message]:
    """The messages of a record. Raises `Unusable`, with the reason, where it has none."""
    form = form_of(record)
    if form == "messages":
        return checked_messages("messages", record["messages"])
    if form == "prompt":
        return [_message(USER, record, "prompt"), _message(ASSISTANT, record, "completion")]
    if form == "sharegpt":
        return [*_system(record), *_sharegpt(record["conversations"])]
    if form == "alpaca":
        return [*_system(record), *_alpaca(record)]
    forms = ", ".join(" and ".join(f"`{key}`" for key in keys) for keys in FORMS.values())
    raise Unusable(f"none of {forms} (it has {key_names(record)})")


def _sharegpt(turns: object) -> list[Message]:
    if not isinstance(turns, list) or not turns:
        raise Unusable("`conversations` is not a list with messages")
    return [_sharegpt_turn(number, turn) for number, turn in enumerate(turns, 1)]


def _sharegpt_turn(number: int, turn: object) -> Message:
    if not isinstance(turn, dict) or "from" not in turn:
        return checked_message(number, turn)
    role = SHAREGPT_ROLES.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        raise Unusable(
            f"message {number} is from {quoted(turn['from'], 40)}; expected one of {', '.join(SHAREGPT_ROLES)}"
        )
    others = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return checked_message(number, {"role": role, "content": turn.get("value"), **others}, "value")


def _alpaca(record: dict[str, object]) -> list[Message]:
    if record.get("history"):
        raise Unusable("`history` of an Alpaca record is not read; expected `messages` for several turns")
    question = _message(USER, record, "instruction")
    if record.get("input"):
        question["content"] = f"{question['content']}\n{_message(USER, record, 'input')['content']}"
    return [question, _message(ASSISTANT, record, "output")]


def _system(record: dict[str, object]) -> list[Message]:
    return [_message(SYSTEM, record, "system")] if record.get("system") else []


def _message(role: str, record: dict[str, object], key: str) -> Message:
    if not isinstance(record[key], str):
        raise Unusable(f"the value of `{key}` is not text")
    return {"role": role, "content": record[key]}
