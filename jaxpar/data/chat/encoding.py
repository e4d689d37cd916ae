"""Conversations as tokens: which of them the assistant says, and what ends its turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted
from jaxpar.data.chat.conversation import Conversation
from jaxpar.data.chat.messages import ASSISTANT, USER, Message, Unusable
from jaxpar.data.chat.renderer import PREPARED_ON, Rendered, Renderer
from jaxpar.data.chat.sandbox import turn_of
from jaxpar.data.chat.template import ChatTemplate
from jaxpar.data.tokens.tokenizer_file import Tokenizer, without_panics

_PROBE = "zebra"
TOOLS = ("tool", "observation")
"""Roles of what tools answer, as published templates name them."""
_MARKER = re.compile(r"<([|\uff5c])[^<>|\uff5c\s]+\1>|<(?:start|end)_of_turn>|</?s>")
"""Markers of turns in published templates. Others, such as `[INST]`, are text by design in some tokenizers."""


class EndOfTurn(NamedTuple):
    """The text and token that end the assistant's turn."""

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

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, today: str = PREPARED_ON) -> None:
        self.template = template
        self._tokenizer = _for_chat(tokenizer)
        self._renderer = Renderer(template, today)
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._special = _any_text_pattern([one.content for one in added if one.special])
        self._added = _any_text_pattern([one.content for one in added])

    def rendered(self, conversation: Conversation, prompt: int = 0) -> Rendered:
        """A conversation rendered as text. Raises `Unusable` where it cannot be used.

        The ranges are those that the loss counts: not what the assistant says in the first `prompt` messages, nor in
        messages that are not to be trained on. Where the token that begins the next turn ends that of the assistant, it
        is in the range.
        """
        self.check(conversation.messages)
        self._check_plain(conversation.tools, "`tools`")
        rendered = self._renderer.rendered(conversation)
        if self._next_turn_tokens:
            rendered = rendered._replace(
                ranges=[self._with_next_token(rendered.text, *each) for each in rendered.ranges]
            )
        trained = conversation.trained(prompt)
        if not all(trained):
            if len(rendered.ranges) != len(trained):
                raise Unusable(
                    f"the chat template marks {len(rendered.ranges)} passages, and the assistant has {len(trained)} "
                    "messages, so that those that are not trained on are not known"
                )
            ranges = [each for each, counted in zip(rendered.ranges, trained, strict=True) if counted]
            rendered = rendered._replace(ranges=ranges)
        if not any(first < last for first, last in rendered.ranges):
            raise Unusable("the chat template renders nothing that the assistant says")
        return rendered

    def is_open(self, conversation: Conversation, rendered: Rendered) -> bool:
        """Whether the assistant has the last word, and the template writes nothing behind it that ends its turn."""
        last, (_, end) = conversation.messages[-1], rendered.ranges[-1]
        content = str(last.get("content") or "").strip()
        says_it = last["role"] == ASSISTANT and rendered.text[:end].rstrip().endswith(content)
        return bool(content) and says_it and not rendered.text[end:].strip()

    def _with_next_token(self, text: str, first: int, last: int) -> tuple[int, int]:
        """A range, with the token behind it and the white space between, if there is one."""
        assert self._added is not None
        next_token = self._added.match(text, len(text) - len(text[last:].lstrip()))
        return first, (last if next_token is None or first == last else next_token.end())

    @cached_property
    def _next_turns(self) -> list[str]:
        """The texts between an answer and the message of each role, where the template ends an answer by nothing else.

        Roles that the template refuses are left out; conversations that it does not refuse will show.
        """
        try:
            answered = _example(USER, ASSISTANT)
            rendered = self._renderer.rendered(answered)
        except Unusable:
            return []
        if not rendered.ranges or not self.is_open(answered, rendered):
            return []
        texts = []
        for role in (USER, *TOOLS):
            with suppress(Unusable):
                texts.append(self._renderer.rendered(_example(USER, ASSISTANT, role)).text.split(_PROBE)[-2])
        return texts

    @cached_property
    def _next_turn_tokens(self) -> list[str]:
        """The tokens that begin the next turn and so end an answer, as in GLM's templates."""
        if self._added is None:
            return []
        matches = [self._added.match(text.lstrip()) for text in self._next_turns]
        return [one[0] for one in matches if one]

    def check(self, messages: Sequence[Message], first: int = 1) -> None:
        """Raises `Unusable` for a message that spells a special token; `first` is the number of the first."""
        for number, message in enumerate(messages, first):
            self._check_plain(message, f"message {number}")

    def _check_plain(self, value: object, what: str) -> None:
        for text in _texts(value):
            if self._special is not None and (special := self._special.search(text)):
                raise Unusable(f"{what} spells the special token {quoted(special[0])}")

    def encoded(self, texts: Sequence[Rendered]) -> list[tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]]:
        """Tokens of each text, and whether each is, at least in part, of what the assistant says."""
        with without_panics():
            encodings = self._tokenizer.encode_batch([each.text for each in texts], add_special_tokens=False)
        return [
            (np.array(one.ids, np.int64), _within(np.array(one.offsets, np.int64).reshape(-1, 2), each.ranges))
            for one, each in zip(encodings, texts, strict=True)
        ]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of the messages and of the beginning of the assistant's turn. Raises `Unusable`."""
        text = self._renderer.prompt(messages)
        with without_panics():
            return self._tokenizer.encode(text, add_special_tokens=False).ids

    def end_of_turn(self) -> EndOfTurn:
        """The text that the template writes after an answer. Raises `Unusable` if it refuses an example."""
        end = turn_of(self._renderer.rendered(_example(USER, ASSISTANT)).text.rpartition(_PROBE)[2], "")
        ids = self._tokenizer.encode(end.strip(), add_special_tokens=False).ids
        eos = self._tokenizer.token_to_id(self.template.variables.get("eos_token", ""))
        next_turns = [self._tokenizer.token_to_id(one) for one in self._next_turn_tokens]
        tokens = frozenset(one for one in (eos, *next_turns) if one is not None)
        if ids and ids[0] in self._tokenizer.get_added_tokens_decoder():
            return EndOfTurn(tokens | {ids[0]}, ())
        return EndOfTurn(tokens, (end,) if end else ())

    def masked_end_notice(self) -> str:
        """A sentence about ends of the assistant's turns that the loss does not count; empty where it counts them."""
        try:
            text, ranges = self._renderer.rendered(_example(USER, ASSISTANT))
        except Unusable:
            return ""  # Conversations that the template does not refuse will show.
        if ranges and turn_of(text[ranges[-1][1] :], ""):
            return (
                "The chat template's {% generation %} blocks leave out what ends the assistant's turn, so a model that "
                "is trained on this does not learn to end it; they may enclose it."
            )
        if self._next_turns and not self._next_turn_tokens:
            return (
                "The chat template writes no special token between what the assistant says and the next message, so "
                "the end of its turn is counted only at the end of a conversation, by the end-of-document token."
            )
        return ""

    def text_markers(self) -> list[str]:
        """The markers that the template writes, such as `<|im_start|>`, which are no added tokens of the tokenizer."""
        try:
            text = self._renderer.rendered(_example(USER, ASSISTANT)).text
        except Unusable:
            return []  # Conversations that the template does not refuse will show.
        markers = dict.fromkeys(match[0] for match in _MARKER.finditer(text))
        return [one for one in markers if self._added is None or not self._added.fullmatch(one)]

    def check_markers(self) -> None:
        """Raises `UserError` for markers that are no tokens: a model would see each in pieces."""
        if markers := self.text_markers():
            raise UserError(
                f"{self.template.words}: {', '.join(map(quoted, markers))} {_are_no_tokens(markers)}; expected a "
                "tokenizer that has them (python -m jaxpar.prepare --train-bpe with --special-tokens makes one), or "
                "another template"
            )

    def close(self) -> None:
        """End the process that renders."""
        self._renderer.close()


def _example(*roles: str) -> Conversation:
    return Conversation([{"role": role, "content": _PROBE} for role in roles])


def _are_no_tokens(markers: Sequence[str]) -> str:
    return f"{'is' if len(markers) == 1 else 'are'} not among the tokenizer's special tokens"


def _any_text_pattern(texts: Sequence[str]) -> re.Pattern[str] | None:
    """A pattern for any of some texts, the longest first; None for no text."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None


def _for_chat(tokenizer: Tokenizer) -> Tokenizer:
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


def _texts(value: object) -> Iterator[str]:
    """Iterate over the strings in a JSON value, keys included."""
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
    inside = np.zeros(len(offsets), bool)
    for first, last in ranges:
        inside |= (offsets[:, 0] < last) & (offsets[:, 1] > first)
    return inside
