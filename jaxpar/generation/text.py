"""Text as it grows: what ends it, and how it is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNKNOWN = "\ufffd"
"""Stands for bytes that are no character, or not yet, in what tokenizers decode."""
_LONG = 16
"""Tokens without a whole character after which boundaries between them are tried."""


class GrowingText:
    """The text of a row of tokens, of which each new one decodes the last ones alone.

    It is that of all tokens decoded at once; but a character that was whole stays, also where a decoder takes it back
    for the bytes behind it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self.text, self._decode = "", decode
        self._settled = ""
        self._before: list[int] = []
        """The last tokens of the settled text, for decoders treat the first token of a text in another way."""
        self._tokens: list[int] = []
        """The tokens behind it: their last character may be incomplete."""

    def add_token(self, token: int) -> None:
        """Takes a new token."""
        self._tokens.append(token)
        tail = self._tail(self._tokens)
        self.text = self._settled + tail
        if tail and not tail.endswith(UNKNOWN):
            self._settle(len(self._tokens), tail)
        elif self._before and not tail:
            self._tokens.clear()  # special tokens, which have no text
        elif len(self._tokens) % _LONG == 0:
            self._settle_some(tail)

    @property
    def settled(self) -> int:
        """Letters of the text that stay."""
        return len(self._settled)

    def _tail(self, tokens: Sequence[int]) -> str:
        """The text that tokens add to the settled one."""
        before = len(self._decode(self._before)) if self._before else 0
        return self._decode([*self._before, *tokens])[before:]

    def _settle(self, tokens: int, text: str) -> None:
        self._settled += text
        self._before, self._tokens = self._tokens[:tokens], self._tokens[tokens:]

    def _settle_some(self, tail: str) -> None:
        """Settle bytes that never become a character: those before a boundary that cuts none in two."""
        for size in range(len(self._tokens) - 1, len(self._tokens) - _LONG, -1):
            first = self._tail(self._tokens[:size])
            if first and first + self._decode(self._tokens[size:]) == tail:
                self._settle(size, first)
                return


class Stop:
    """The text of a row so far, which ends before the first of the stop strings."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]):
        self.text, self._growing, self._stops = "", GrowingText(decode), [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)

    def add_token(self, token: int) -> bool:
        """Takes a new token; whether the text ends."""
        settled = self._growing.settled
        self._growing.add_token(token)
        self.text = self._growing.text
        first = max(0, settled - self._longest + 1)  # no stop string is in what was settled before
        starts = [start for stop in self._stops if (start := self.text.find(stop, first)) >= 0]
        if starts:
            self.text = self.text[: min(starts)]
        return bool(starts)

    @property
    def certain(self) -> str:
        """The text without an end that may be the beginning of a stop string."""
        begun = max((_begun(self.text, stop) for stop in self._stops), default=0)
        return self.text[: len(self.text) - begun]


def _begun(text: str, stop: str) -> int:
    """The letters at the end of a text with which a stop string begins; all of it is not there."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) - start if start >= 0 else 0


class Screen:
    """Prints a text as it grows; bytes that are no whole character yet wait."""

    def __init__(self, prompt: str):
        self._shown = ""
        print(prompt, end="", flush=True)

    def show(self, text: str) -> None:
        """Print what is new."""
        complete = text.rstrip(UNKNOWN)
        if complete.startswith(self._shown):
            print(complete[len(self._shown) :], end="", flush=True)
            self._shown = complete

    def end(self) -> None:
        """Ends the printed line."""
        print(flush=True)
