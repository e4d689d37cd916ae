"""Conversations from a record, in one of the forms of `record_forms.py`; a pair of them, chosen and rejected; or one
with a mark."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpar.data.chat.messages import (
    ASSISTANT,
    LOSS_KEYS,
    USER,
    Message,
    Unusable,
    checked_messages,
    is_trained,
    key_names,
)
from jaxpar.data.chat.record_forms import messages_of


@dataclass(frozen=True)
class Conversation:
    """The messages of a conversation, in turn."""

    messages: list[Message]
    tools: list[object] | None = None
    """Descriptions of functions, for templates that render them."""

    def request(self) -> dict[str, object]:
        """The variables with which a template is rendered."""
        messages = [{key: value for key, value in each.items() if key not in LOSS_KEYS} for each in self.messages]
        return {"messages": messages, **({} if self.tools is None else {"tools": self.tools})}

    def trained(self, prompt: int = 0) -> list[bool]:
        """Whether the loss counts each message of the assistant: none of the first `prompt` messages."""
        return [
            index >= prompt and is_trained(message)
            for index, message in enumerate(self.messages)
            if message["role"] == ASSISTANT
        ]


def conversation_of(value: dict[str, object]) -> Conversation:
    """The conversation of an object. Raises `Unusable`, with the reason, where there is none to train on."""
    conversation = Conversation(messages_of(value), _tools(value))
    trained = conversation.trained()
    if not any(trained):
        which = "none of `weight` 1 and `train` true" if trained else "no message"
        raise Unusable(f"{which} of the role `{ASSISTANT}`, so there is nothing to train on")
    return conversation


@dataclass(frozen=True)
class Pair:
    """Two conversations that begin alike."""

    chosen: Conversation
    rejected: Conversation
    prompt: int
    """Messages with which both begin."""


def pair_of(value: dict[str, object]) -> Pair:
    """The pair of an object: a `prompt` with two answers, `chosen` and `rejected`, as text or as messages.

    Without a `prompt`, the answers are whole conversations, and the prompt is what they have in common; so are those
    that begin alike with a message of the user that is the `prompt`. OpenAI's records have an `input` with `messages`,
    a `preferred_output` and a `non_preferred_output`. Raises `Unusable`, with the reason.
    """
    if isinstance(request := value.get("input"), dict) and PREFERRED in value and "non_preferred_output" in value:
        answers = {CHOSEN: value[PREFERRED], REJECTED: value["non_preferred_output"]}
        value = {**request, **answers, "prompt": request.get("messages")}
    for name in (CHOSEN, REJECTED):
        if name not in value:
            raise Unusable(f"no `{name}` (it has {key_names(value)})")
    prompt, tools = value.get("prompt"), _tools(value)
    chosen, rejected = (_answer(name, value[name]) for name in (CHOSEN, REJECTED))
    as_messages = not isinstance(value[CHOSEN], str) and not isinstance(value[REJECTED], str)
    first = [{"role": USER, "content": prompt}]
    if prompt is None and not as_messages:
        raise Unusable("no `prompt`, and the answers are text")
    common = _common(chosen, rejected)
    if prompt is None or (as_messages and first[0] in chosen[:common]):
        before, chosen, rejected = chosen[:common], chosen[common:], rejected[common:]
        if not before:
            raise Unusable("`chosen` and `rejected` begin with different messages, and there is no other prompt")
    else:
        before = first if isinstance(prompt, str) else checked_messages("prompt", prompt)
    if chosen == rejected:
        raise Unusable("`chosen` and `rejected` are the same")
    for name, answer in ((CHOSEN, chosen), (REJECTED, rejected)):
        _check_trained(name, answer)
    return Pair(Conversation([*before, *chosen], tools), Conversation([*before, *rejected], tools), len(before))


@dataclass(frozen=True)
class Labelled:
    """A conversation with a mark."""

    conversation: Conversation
    prompt: int
    """Messages before the answer."""
    desirable: bool


def labelled_of(value: dict[str, object]) -> Labelled:
    """The marked conversation of an object: a `prompt` and a `completion`, as text or as messages, and a `label`, true
    or false. Raises `Unusable`, with the reason."""
    for name in ("prompt", COMPLETION, "label"):
        if name not in value:
            raise Unusable(f"no `{name}` (it has {key_names(value)})")
    prompt, label, answer = value["prompt"], value["label"], _answer(COMPLETION, value[COMPLETION])
    if not isinstance(label, bool):
        raise Unusable("`label` is neither true nor false")
    first: list[Message] = [{"role": USER, "content": prompt}]
    before = first if isinstance(prompt, str) else checked_messages("prompt", prompt)
    _check_trained(COMPLETION, answer)
    return Labelled(Conversation([*before, *answer], _tools(value)), len(before), label)


CHOSEN, REJECTED, COMPLETION = "chosen", "rejected", "completion"
PREFERRED = "preferred_output"


def _check_trained(name: str, answer: list[Message]) -> None:
    if not any(message["role"] == ASSISTANT and is_trained(message) for message in answer):
        raise Unusable(f"`{name}` has no message of the role `{ASSISTANT}` after the prompt that is trained on")


def _common(chosen: list[Message], rejected: list[Message]) -> int:
    """Messages with which both begin."""
    alike = [one == other for one, other in zip(chosen, rejected, strict=False)]
    return alike.index(False) if False in alike else len(alike)


def _answer(name: str, value: object) -> list[Message]:
    return [{"role": ASSISTANT, "content": value}] if isinstance(value, str) else checked_messages(name, value)


def _tools(value: dict[str, object]) -> list[object] | None:
    tools, functions = value.get("tools"), value.get("functions")
    for name, listed in (("tools", tools), ("functions", functions)):
        if listed is not None and not isinstance(listed, list):
            raise Unusable(f"`{name}` is not a list")
    if tools is None and isinstance(functions, list):
        return [{"type": "function", "function": function} for function in functions]
    return tools if isinstance(tools, list) else None
