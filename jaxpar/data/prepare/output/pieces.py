"""Long texts in pieces that have the tokens of the whole: a library's memory grows with what it encodes at once.

A text is cut only where its tokenizer certainly splits it, whatever stands on either side, and where a piece alone is
split as it is within the whole:

- before a space between two letters of ASCII, which GPT-2's pattern and its successors, SentencePiece's `Metaspace` and
  the splits at whitespace all begin a new piece with;
- behind a line end between a character that is no whitespace and a letter or digit, where the tokenizer neither adds a
  space at the beginning of a text nor joins lines.

`find_cuts` reads from the tokenizer's description whether that holds. Where it does not, or a text has no such place, a
document has at most `LARGEST_PIECE` characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxpar.data.tokens.tokenizer_file import Tokenizer

LONGEST_PIECE = 2**18
"""Largest number of characters in a piece, if the text can be cut that often."""
LARGEST_PIECE = 2**23
"""Most characters that are encoded at once, which takes about 0.7 GB."""

_LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}
"""Normalizers that change neither spaces nor line ends, and look no further than a character and its marks."""
_SPACING_NORMALIZERS = {"Nmt", "BertNormalizer", "Precompiled"}
"""The same, but line ends may become spaces."""
_AT_WHITESPACE = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
_WITHIN_LETTERS = {"Digits", "Punctuation"}
"""Pre-tokenizers that split by the kind of a character; others may follow."""
_LETTERS = {
    r" ?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
}
"""Alternatives of published patterns (GPT-2, cl100k, o200k) that match letters, with a space before them."""
_OTHERS = {
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    *(r" ?\p{N}+", r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
}
"""Alternatives of these patterns that never reach from a letter to a space, or over a line end to a letter."""


class Cuts(NamedTuple):
    """The positions at which a tokenizer's input may be cut without changing its tokens."""

    spaces: bool
    """Whether a cut is possible before a space between two letters."""
    lines: bool
    """Whether a cut is possible after a line end before a letter or digit."""
    longest: int = LONGEST_PIECE
    """Largest number of characters in a piece, if the text can be cut that often."""
    largest: int = LARGEST_PIECE
    """Largest number of characters in any piece."""

    def pieces(self, text: str) -> list[str] | None:
        """A text in pieces with the same tokens; None where that takes one of more than `largest` characters."""
        pieces, first = [], 0
        while len(text) - first > self.longest:
            end = self._last(text, first + 1, first + self.longest)
            if end is None:
                end = self._next(text, first + self.longest)
            if end - first > self.largest:
                return None
            pieces.append(text[first:end])
            first = end
        return [*pieces, text[first:]] if first < len(text) or not pieces else pieces

    def _last(self, text: str, low: int, high: int) -> int | None:
        """The last cut from `low` to `high`."""
        space = high + 1
        while self.spaces and (space := text.rfind(" ", low, space)) >= 0:
            if _is_between_letters(text, space):
                break
        line = high
        while self.lines and (line := text.rfind("\n", low, line)) >= 0:
            if _is_single_line_end(text, line):
                break
        position = max(space if self.spaces else -1, line + 1 if self.lines and line >= 0 else -1)
        return position if position >= low else None

    def _next(self, text: str, low: int) -> int:
        """The first cut from `low` on, or the end of the text, or any place beyond what may be encoded at once."""
        high = min(len(text), low + self.largest)
        for match in re.compile("[ \n]").finditer(text, low, high):
            position = match.start()
            if self.spaces and text[position] == " " and _is_between_letters(text, position):
                return position
            if self.lines and text[position] == "\n" and _is_single_line_end(text, position):
                return position + 1
        return high


def find_cuts(tokenizer: Tokenizer) -> Cuts:
    """The possible cuts for a `tokenizers` tokenizer that encodes special tokens as text."""
    plain = json.loads(tokenizer.to_str())
    normalizers = {_kind(each) for each in _flat(plain["normalizer"], "normalizers")}
    added = [token for token in plain["added_tokens"] if not token["special"]]
    if not normalizers <= {"", *_LOCAL_NORMALIZERS, *_SPACING_NORMALIZERS}:
        return Cuts(False, False)
    if any(token["rstrip"] or re.search(r"\S\s", token["content"]) for token in added):
        return Cuts(False, False)
    for part in _flat(plain["pre_tokenizer"], "pretokenizers"):
        if part["type"] in _WITHIN_LETTERS:
            continue
        cuts = _cuts_of(part)
        if normalizers & _SPACING_NORMALIZERS and part["type"] not in _AT_WHITESPACE:
            cuts = cuts._replace(lines=False)
        if any(token["lstrip"] or re.search(r"\n\S", token["content"]) for token in added):
            cuts = cuts._replace(lines=False)
        return cuts
    return Cuts(False, False)


def _cuts_of(part: dict[str, Any]) -> Cuts:
    """The cuts at which a pre-tokenizer always splits."""
    kind = part["type"]
    if kind in _AT_WHITESPACE:
        return Cuts(True, True)
    if kind == "ByteLevel" and part.get("use_regex", True):
        # A space at the beginning is added to a piece that begins with none.
        return Cuts(True, not part["add_prefix_space"])
    if kind == "Metaspace":
        return Cuts(part.get("split", True), False)
    if kind == "Split" and (part["behavior"] == "Isolated" or (part["behavior"], part["invert"]) == ("Removed", True)):
        alternatives = set(_alternatives(part["pattern"].get("Regex", "")))
        known = alternatives <= _LETTERS | _OTHERS and not alternatives.isdisjoint(_LETTERS)
        return Cuts(known, known and r"\s+" in alternatives)
    return Cuts(False, False)


def _alternatives(pattern: str) -> Iterator[str]:
    """The alternatives of a pattern that are not within parentheses or brackets."""
    begin = depth = 0
    for match in re.finditer(r"\\.|[()\[\]|]", pattern):
        letter = match[0]
        depth += (letter in "([") - (letter in ")]")
        if letter == "|" and depth == 0:
            yield pattern[begin : match.start()]
            begin = match.end()
    yield pattern[begin:]


def _flat(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The parts of a sequence, those of sequences in it included."""
    if part is None:
        return []
    return [each for inner in part[key] for each in _flat(inner, key)] if part["type"] == "Sequence" else [part]


def _kind(normalizer: dict[str, Any]) -> str:
    """The type of a normalizer; "" for one that changes nothing at a cut."""
    if normalizer["type"] != "Replace":
        return normalizer["type"]
    pattern = normalizer["pattern"]
    harmless = pattern.get("Regex") == " {2,}" or not re.search(r"\s", pattern.get("String", " "))
    return "" if harmless else "Replace"


def _is_between_letters(text: str, position: int) -> bool:
    around = text[position - 1 : position] + text[position + 1 : position + 2]
    return len(around) == 2 and around.isascii() and around.isalpha()


def _is_single_line_end(text: str, position: int) -> bool:
    before, behind = text[position - 1 : position], text[position + 1 : position + 2]
    return position > 0 and not before.isspace() and (behind.isalpha() or behind in tuple("0123456789"))
