"""A text longer than a model's context, in windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Window(NamedTuple):
    """Tokens that are scored, after others that are not."""

    before: list[int]
    """Tokens before the scored ones, at least one."""
    scored: list[int]


def windows(tokens: Sequence[int], begin: int, length: int, stride: int | None = None) -> Iterator[Window]:
    """Windows in which each token is scored once, after the tokens before it.

    A forward reads at most `length` tokens, the last scored one left out. The first window scores `length` tokens after
    `begin`. Each next one scores `stride` tokens after `length - stride + 1` others. The last one, which may score
    fewer, moves back and so has more tokens before them.

    Args:
        tokens: of the text.
        begin: the token before the first one.
        length: the longest context.
        stride: `length`, the default, makes windows disjoint, as in lm-evaluation-harness: few tokens are read twice,
            and the first ones of a window are predicted from little. Below it, windows slide.
    """
    stride = length if stride is None else stride
    assert 1 <= stride <= length, f"a stride of {stride} with windows of {length}"
    first = 0
    while first < len(tokens):
        last = min(first + (stride if first else length), len(tokens))
        text = [begin, *tokens[:last]] if last <= length else list(tokens[last - length - 1 : last])
        scored = last - first
        yield Window(text[:-scored], text[-scored:])
        first = last
