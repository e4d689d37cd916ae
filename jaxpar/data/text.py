"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Encode(Protocol):
    """A function from text to tokens."""

    def __call__(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """Encode a text; with `special_tokens`, names of special tokens in it become those tokens."""
        ...


@dataclass(frozen=True)
class Text:
    """A text decoded from tokens."""

    decode: Callable[[Sequence[int]], str]
    stops: Sequence[int]
    """Tokens that end a text."""
