"""Conversations as tokens: which of them the assistant says, and what ends its turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxpar.config.spelling import quoted
from jaxpar.data.chat.conversation import ASSISTANT, Conversation, Message, Unusable
from jaxpar.data.chat.renderer import PREPARED_ON, Rendered, Renderer
from jaxpar.data.chat.sandbox import turn_of
from jaxpar.data.chat.template import ChatTemplate

_PROBE = "zebra"


class EndOfTurn(NamedTuple):
    """What ends the assistant's turn."""

    tokens: frozenset[int]
    texts: tuple[str, ...]


class ChatEncoder:
    """Renders conversations and encodes them with a tokenizer.

    In what a template writes, special tokens are recognized. A message that spells one is refused: it would end its
    turn, or begin one of another role.

    Args:
        template: the template.
        tokenizer: of the library `tokenizers`; it is copied.
        today: the date that the template sees.

    Raises:
        UserError: the template cannot be used.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Any, today: str = PREPARED_ON) -> None:
        self.template = template
        self._tokenizer = _for_chat(tokenizer)
        self._renderer = Renderer(template, today)
        special = [one.content for one in self._tokenizer.get_added_tokens_decoder().values() if one.special]
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if special else None

    def rendered(self, conversation: Conversation, prompt: int = 0) -> Rendered:
        """All of a conversation as text. Raises `Unusable` where it cannot be used.

        What the assistant says in the first `prompt` messages is not among the ranges.
        """
        self.check(conversation.messages)
        self._check_plain(conversation.tools, "`tools`")
        found = self._renderer.rendered(conversation)
        if prompt:
            said = sum(message["role"] == ASSISTANT for message in conversation.messages)
            if len(found.ranges) != said:
                raise Unusable(
                    f"the chat template marks {len(found.ranges)} passages, and the assistant has {said} messages, so "
                    "that those of the prompt are not known"
                )
            before = sum(message["role"] == ASSISTANT for message in conversation.messages[:prompt])
            found = found._replace(ranges=found.ranges[before:])
        if not any(first < last for first, last in found.ranges):
            raise Unusable("the chat template renders nothing that the assistant says")
        return found

    def is_open(self, conversation: Conversation, found: Rendered) -> bool:
        """Whether the assistant has the last word, and the template writes nothing behind it that ends its turn."""
        last, (_, end) = conversation.messages[-1], found.ranges[-1]
        content = (last.get("content") or "").strip()
        says_it = last["role"] == ASSISTANT and found.text[:end].rstrip().endswith(content)
        return bool(content) and says_it and not found.text[end:].strip()

    def check(self, messages: Sequence[Message], first: int = 1) -> None:
        """Raises `Unusable` for a message that spells a special token; `first` is the number of the first."""
        for number, message in enumerate(messages, first):
            self._check_plain(message, f"message {number}")

    def _check_plain(self, value: Any, what: str) -> None:
        for text in _texts(value):
            if self._special is not None and (found := self._special.search(text)):
                raise Unusable(f"{what} spells the special token {quoted(found[0])}")

    def encoded(self, texts: Sequence[Rendered]) -> list[tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]]:
        """Tokens of each text, and whether each is, at least in part, of what the assistant says."""
        found = self._tokenizer.encode_batch([each.text for each in texts], add_special_tokens=False)
        return [
            (np.array(one.ids, np.int64), _within(np.array(one.offsets, np.int64).reshape(-1, 2), each.ranges))
            for one, each in zip(found, texts, strict=True)
        ]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of the messages and of the beginning of the assistant's turn. Raises `Unusable`."""
        return self._tokenizer.encode(self._renderer.prompt(messages), add_special_tokens=False).ids

    def end_of_turn(self) -> EndOfTurn:
        """What the template writes behind what the assistant says. Raises `Unusable` where it refuses an example."""
        end = turn_of(self._example().text.rpartition(_PROBE)[2], "")
        ids = self._tokenizer.encode(end.strip(), add_special_tokens=False).ids
        eos = self._tokenizer.token_to_id(self.template.variables.get("eos_token", ""))
        tokens = frozenset() if eos is None else frozenset({eos})
        if ids and ids[0] in self._tokenizer.get_added_tokens_decoder():
            return EndOfTurn(tokens | {ids[0]}, ())
        return EndOfTurn(tokens, (end,) if end else ())

    def learns_to_end(self) -> bool:
        """Whether what ends the assistant's turn is counted: marks of a template may leave it out."""
        try:
            text, ranges = self._example()
        except Unusable:
            return True  # Conversations that it does not refuse will show.
        return not ranges or not turn_of(text[ranges[-1][1] :], "")

    def _example(self) -> Rendered:
        """A conversation of two messages. Raises `Unusable` where the template refuses it."""
        return self._renderer.rendered(
            Conversation([{"role": role, "content": _PROBE} for role in ("user", ASSISTANT)])
        )

    def close(self) -> None:
        """End the process that renders."""
        self._renderer.close()


def _for_chat(tokenizer: Any) -> Any:
    """A copy that recognizes special tokens in a text and gives the place of every character: post-processors of
    byte-level tokenizers leave the space before a word out of its place."""
    from tokenizers import Tokenizer

    plain = json.loads(tokenizer.to_str())
    plain["post_processor"] = None
    copy = Tokenizer.from_str(json.dumps(plain))
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = False
    return copy


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value of JSON, names of keys too."""
    left = [value]  # No recursion: JSON may be nested deeper than calls of Python.
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list):
            left += each


def _within(offsets: Int[np.ndarray, "n 2"], ranges: Sequence[tuple[int, int]]) -> Bool[np.ndarray, " n"]:
    """Whether each token has a character within one of the ranges."""
    found = np.zeros(len(offsets), bool)
    for first, last in ranges:
        found |= (offsets[:, 0] < last) & (offsets[:, 1] > first)
    return found
