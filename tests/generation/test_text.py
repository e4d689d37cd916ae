"""Text as it grows: what its tokens decode to at once, and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import decoders

from jaxpar.generation.text import GrowingText, Stop

WORDS = ["▁the", "▁", "▁a", "b", "<0xE2>", "<0x82>", "<0xAC>", "\n"]
LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def of_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def of_words(tokens: Sequence[int]) -> str:
    return LLAMA.decode([WORDS[token] for token in tokens])


def texts(decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> list[str]:
    growing, found = GrowingText(decode), []
    for token in tokens:
        growing.add_token(token)
        found.append(growing.text)
    return found


@pytest.mark.parametrize(
    ("decode", "tokens"),
    [
        (of_bytes, [*"a€ é😀\n漢字 \ufffd.".encode()]),
        (of_bytes, [*np.random.default_rng(0).integers(0, 256, 500)]),
        (of_bytes, [*"漢".encode()[1:], *([0xF0, 0x9F] * 40), *"😀".encode()]),
        (of_words, [1, 0, 2, 3, 1, 1, 4, 5, 6, 3, 7, 0]),
    ],
)
def test_each_text_is_that_of_all_tokens_at_once(decode: Callable[[Sequence[int]], str], tokens: list[int]):
    assert texts(decode, tokens) == [decode(tokens[: size + 1]) for size in range(len(tokens))]


def test_a_character_that_was_whole_stays():
    """Llama's decoder takes it back until the bytes behind it are one too."""
    assert of_words([4, 5, 6, 4]) == "\ufffd" * 4
    assert texts(of_words, [4, 5, 6, 4, 5, 6]) == [
        "\ufffd", "\ufffd" * 2, "€", "€\ufffd\ufffd\ufffd", "€\ufffd\ufffd\ufffd\ufffd", "€€",
    ]  # fmt: skip


@pytest.mark.parametrize("byte", [0x61, 0x80, 0])
def test_a_token_decodes_the_end_of_the_text_alone(byte: int):
    """Also where bytes never become a character, and where tokens have no text."""
    sizes = []

    def decode(tokens: Sequence[int]) -> str:
        sizes.append(len(tokens))
        return of_bytes([token for token in tokens if token])

    assert texts(decode, [0x61, *[byte] * 300, 0x62])[-1] == decode([0x61, *[byte] * 300, 0x62])
    assert sizes.pop() == 302 and max(sizes) <= 64 and sum(sizes) < 300 * 64


def test_a_stop_string_over_many_tokens_ends_the_text_before_it():
    stop = Stop(of_bytes, ["€\n€", "bb"])
    assert not any(map(stop.add_token, "xab€".encode()))
    assert (stop.text, stop.certain) == ("xab€", "xab")
    assert [stop.add_token(token) for token in "€\n€".encode()] == [False] * 6 + [True]
    assert stop.text == "xab€"


class Whole(str):
    """A text of which no part is taken."""

    def __getitem__(self, key: Any) -> str:
        assert not isinstance(key, slice), "its beginnings have as many letters as the square of its length"
        return super().__getitem__(key)


def test_what_may_begin_a_stop_string_is_found_at_the_end_of_the_text():
    stop = Stop(of_bytes, [Whole(f"{'ab' * 1000}c")])
    certain = []
    for token in b"xaabaab":
        assert not stop.add_token(token)
        certain.append(stop.certain)
    assert certain == ["x", "x", "xa", "xa", "xa", "xaaba", "xaaba"]
