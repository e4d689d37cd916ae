"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Encode(Protocol):
    """Text to tokens."""

    def __call__(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """With `special_tokens` the names of special tokens in the text are those tokens; else they are text."""
        ...


@dataclass(frozen=True)
class Text:
    """Tokens to text."""

    decode: Callable[[Any], str]
    ends: Sequence[int]
    """Tokens that end a text."""
