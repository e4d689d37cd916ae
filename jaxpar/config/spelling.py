"""Near misses: what a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

FORMER = {"blockwise": "xla"}
"""Names of former releases, and what they are called now."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A clause to end an error with (`; did you mean layers?`), or nothing when no known word is near."""
    if FORMER.get(str(word)) in (known := tuple(known)):
        return f"; did you mean {FORMER[str(word)]}?"
    by_lower_case = {name.lower(): name for name in known}
    near = get_close_matches(str(word).lower(), by_lower_case, n=1, cutoff=0.6)
    return f"; did you mean {by_lower_case[near[0]]}?" if near else ""


def one_of(words: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
