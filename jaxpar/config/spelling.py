"""Near misses: what a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def cut(text: object, most: int = 300) -> str:
    """The text if it has at most `most` letters; else its beginning and its end, with dots between."""
    full = str(text)
    return full if len(full) <= most else f"{full[: most - most // 3 - 3]}...{full[len(full) - most // 3 :]}"


def quoted(value: object, most: int = 300) -> str:
    """Something that a user wrote, for a message: its `repr`, without control characters, shortened if it is long."""
    return cut(repr(value), most)


def printable(text: str) -> str:
    """The text with control characters and line ends as escapes: a terminal would interpret them."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def named(path: object) -> str:
    """The path of a file for a message, in one line."""
    return printable(cut(path))


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A clause to end an error with (`; did you mean layers?`), or nothing when no known word is near."""
    by_lower_case = {name.lower(): name for name in known}
    near = get_close_matches(str(word).lower(), by_lower_case, n=1, cutoff=0.6)
    return f"; did you mean {by_lower_case[near[0]]}?" if near else ""


def join_or(words: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def spaced(name: str) -> str:
    """Returns a name such as `saved_activations` with spaces for its underscores."""
    return name.replace("_", " ")
