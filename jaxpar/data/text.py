"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Text:
    """Text to tokens and back."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Any], str]
    ends: Sequence[int]
    """Tokens that end a text."""
