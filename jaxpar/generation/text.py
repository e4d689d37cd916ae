"""Text as it grows: what ends it, and how it is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Stop:
    """The text of a row so far, which ends before the first of the stop strings."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]):
        self.text, self._decode, self._stops = "", decode, [stop for stop in stops if stop]
        self._tokens: list[int] = []

    def add_token(self, token: int) -> bool:
        """Takes a new token; whether the text ends."""
        self._tokens.append(token)
        self.text = self._decode(self._tokens)
        starts = [start for stop in self._stops if (start := self.text.find(stop)) >= 0]
        if starts:
            self.text = self.text[: min(starts)]
        return bool(starts)

    @property
    def certain(self) -> str:
        """The text without an end that may be the beginning of a stop string."""
        parts = (stop[:size] for stop in self._stops for size in range(1, len(stop)))
        held = max((len(part) for part in parts if self.text.endswith(part)), default=0)
        return self.text[: len(self.text) - held]


class Screen:
    """Prints a text as it grows; bytes that are no whole character yet wait."""

    def __init__(self, prompt: str):
        self._shown = ""
        print(prompt, end="", flush=True)

    def show(self, text: str) -> None:
        """Print what is new."""
        whole = text.rstrip("\ufffd")
        if whole.startswith(self._shown):
            print(whole[len(self._shown) :], end="", flush=True)
            self._shown = whole

    def end(self) -> None:
        """End the line."""
        print(flush=True)
