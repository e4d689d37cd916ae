"""Limits of what a `tokenizer.json` may make of a text: the library reserves any memory that a file asks for, and where
there is none it ends the process."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted

LONGEST_TOKENIZER = 2**27
"""Limit in bytes of the file. Those of vocabularies of 262,144 tokens have 2**25."""
MOST_TOKENS = 2**24
"""Numbers of tokens are below it: arrays have a place for each."""
LONGEST_TOKEN = 10_000
"""Letters of a token."""
MOST_TOKENS_BEFORE = 1000
"""Tokens that a template adds to a text."""
MOST_STEPS = 100
"""Steps of a text before it is tokens, and of tokens before they are a text."""
MOST_GROWTH = 1000
"""Largest factor by which they may lengthen a text, in bytes."""
LONGEST_WORD = 1000
"""Letters of a word of WordPiece, whose time is quadratic in them; longer ones are unknown."""
type JsonObject = dict[str, Any]
"""An object of `tokenizer.json`."""

_GROWTH = {
    "ByteLevel": 2, "BertNormalizer": 4.5, "Lowercase": 1.5, "NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11,
    "WordPiece": 2, "BPEDecoder": 2, "CTC": 2,
}  # fmt: skip
"""The same of a step that has no text of its own in it; 1 for others."""
_CONSUMES = re.compile(
    r"(\[[^\[\]\\]+\]|\\[nrtsSdDwW]|\\u[0-9a-fA-F]{4}|[^\\\[\](){}|?*+^$])(\+|\{[1-9]\d*,?\d*\})?(?![*?+{])"
    r"([^|\\]|\\[^K])*"
)
"""Some of the regular expressions that do not find nothing, by their first letter."""
_STEPS = ("normalizers", "pretokenizers", "decoders", "processors")


def check_limits(tokenizer: Any, label: str) -> None:
    """Raise `UserError` for a tokenizer whose use would take more than `label`'s text can be worth.

    Args:
        tokenizer: the contents of the file. What has another form than a tokenizer's is left to the library.
        label: names the file.
    """
    if not isinstance(tokenizer, dict):
        return
    _check_model(tokenizer, label)
    for keys in (("normalizer", "pre_tokenizer"), ("decoder",)):
        _check_growth([step for key in keys for step in _steps(tokenizer.get(key))], f"{label}: {' and '.join(keys)}")
    added = sum(_added(step) for step in _steps(tokenizer.get("post_processor")))
    if added > MOST_TOKENS_BEFORE:
        raise UserError(
            f"{label}: post_processor adds {added} tokens to each text; expected at most {MOST_TOKENS_BEFORE}"
        )


def _check_model(tokenizer: JsonObject, label: str) -> None:
    for token, token_id in _vocabulary(tokenizer):
        if isinstance(token_id, int) and token_id >= MOST_TOKENS:
            raise UserError(
                f"{label}: the token {quoted(token, 60)} has number {token_id}; expected below {MOST_TOKENS}"
            )
        if isinstance(token, str) and len(token) > LONGEST_TOKEN:
            raise UserError(
                f"{label}: the token {quoted(token, 60)} has {len(token)} letters; expected at most {LONGEST_TOKEN}"
            )
    model = tokenizer.get("model")
    for name, limit in (
        ("continuing_subword_prefix", LONGEST_TOKEN), ("end_of_word_suffix", LONGEST_TOKEN),
        ("max_input_chars_per_word", LONGEST_WORD),
    ):  # fmt: skip
        value = model.get(name) if isinstance(model, dict) else None
        letters = len(value) if isinstance(value, str) else value
        if isinstance(letters, int) and letters > limit:
            raise UserError(f"{label}: model.{name} is {quoted(value, 60)}; expected at most {limit} letters")


def _check_growth(steps: list[JsonObject], where: str) -> None:
    """Multiply the growths of steps; of replacements in a row that leave alone what the others made, one has effect on
    a letter."""
    if len(steps) > MOST_STEPS:
        raise UserError(f"{where}: {len(steps)} steps; expected at most {MOST_STEPS}")
    growth, largest, made = 1.0, 1.0, set[str]()
    for step in steps:
        replaced = _pattern(step, "String")
        if not replaced or made & set(replaced):
            growth, largest, made = growth * largest, 1.0, set()
        if replaced:
            largest, made = max(largest, _growth(step, where)), made | set(str(step.get("content")))
        else:
            growth *= _growth(step, where)
    growth *= largest
    if growth > MOST_GROWTH:
        raise UserError(f"{where} may make a text {growth:.4g} times as long; expected at most {MOST_GROWTH} times")


def _vocabulary(tokenizer: JsonObject) -> Iterator[tuple[Any, Any]]:
    """Tokens and their numbers."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary.items()
    elif isinstance(vocabulary, list):
        yield from ((pair[0], index) for index, pair in enumerate(vocabulary) if isinstance(pair, list) and pair)
    yield from ((one.get("content"), one.get("id")) for one in _mappings(tokenizer.get("added_tokens")))


def _mappings(values: Any) -> Iterable[JsonObject]:
    return (one for one in values if isinstance(one, dict)) if isinstance(values, list) else ()


def _steps(node: Any) -> Iterator[JsonObject]:
    """A step, or those of a sequence."""
    left = [node]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += [step for key in _STEPS for step in _mappings(one.get(key))][::-1]


def _pattern(step: JsonObject, kind: str) -> str:
    """The text, or the regular expression, that a step replaces; empty for other steps."""
    pattern = step.get("pattern")
    text = pattern.get(kind) if isinstance(pattern, dict) else None
    return text if isinstance(text, str) else ""


def _growth(step: JsonObject, where: str) -> float:
    """Largest factor by which a step may lengthen a text, in bytes."""
    if isinstance(charsmap := step.get("precompiled_charsmap"), str):
        return _longest_of_map(charsmap, where)
    text = step.get("content", step.get("prepend"))
    if not isinstance(text, str):
        return _GROWTH.get(str(step.get("type")), 1)
    size = float(len(text.encode(errors="replace")))
    if replaced := _pattern(step, "String"):
        return max(1.0, size / len(replaced.encode(errors="replace")))
    return max(1.0, size) if _CONSUMES.fullmatch(_pattern(step, "Regex")) else 1.0 + size


def _longest_of_map(charsmap: str, where: str) -> float:
    """Bytes that a map of characters may make of one: those of its longest text, which end in zeros."""
    try:
        content = base64.b64decode(charsmap, validate=True)
    except ValueError:
        content = b""
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or size > len(content) - 4:
        raise UserError(f"{where}: precompiled_charsmap is damaged; expected the bytes of SentencePiece")
    texts = np.frombuffer(content, np.uint8)[4 + size :]
    return max(1.0, np.diff(np.flatnonzero(texts == 0), prepend=-1, append=len(texts)).max() - 1.0)


def _added(step: JsonObject) -> int:
    """Tokens that a template adds to a text."""
    special = step.get("special_tokens")
    if not isinstance(special, dict):
        return 0
    sizes = {
        name: len(one["ids"])
        for name, one in special.items()
        if isinstance(one, dict) and isinstance(one.get("ids"), list)
    }
    pieces = [one.get("SpecialToken") for one in _mappings(step.get("single"))]
    return sum(sizes.get(str(piece.get("id")), 0) for piece in pieces if isinstance(piece, dict))
