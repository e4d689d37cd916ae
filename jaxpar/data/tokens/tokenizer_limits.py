"""Limits of what a `tokenizer.json` may make of a text: the library reserves any memory that a file asks for, and where
there is none it ends the process."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from typing import Any

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
MOST_GROWTH = 1000
"""How much longer a text may become before it is tokens, and tokens before they are a text."""
_GROWTH = {"ByteLevel": 2, "Precompiled": 18, "WordPiece": 2, "BPEDecoder": 2}
"""The same of steps that have no text of their own in it; others do not let a text grow twice."""
_STEPS = ("normalizers", "pretokenizers", "decoders", "processors")


def check_limits(tokenizer: Any, label: str) -> None:
    """Raise `UserError` for a tokenizer whose use would take more than `label`'s text can be worth.

    Args:
        tokenizer: the contents of the file. What has another form than a tokenizer's is left to the library.
        label: names the file.
    """
    if not isinstance(tokenizer, dict):
        return
    for token, token_id in _vocabulary(tokenizer):
        if isinstance(token_id, int) and token_id >= MOST_TOKENS:
            raise UserError(
                f"{label}: the token {quoted(token, 60)} has number {token_id}; expected below {MOST_TOKENS}"
            )
        if isinstance(token, str) and len(token) > LONGEST_TOKEN:
            raise UserError(
                f"{label}: the token {quoted(token, 60)} has {len(token)} letters; expected at most {LONGEST_TOKEN}"
            )
    for keys in (("normalizer", "pre_tokenizer"), ("decoder",)):
        growth = math.prod(_growth(step) for key in keys for step in _steps(tokenizer.get(key)))
        if growth > MOST_GROWTH:
            raise UserError(
                f"{label}: {' and '.join(keys)} may make a text {growth:.4g} times as long; expected at most "
                f"{MOST_GROWTH} times"
            )
    if any(not _is_charsmap(step) for step in _steps(tokenizer.get("normalizer"))):
        raise UserError(f"{label}: normalizer: precompiled_charsmap is damaged; expected the bytes of SentencePiece")
    added = sum(_added(step) for step in _steps(tokenizer.get("post_processor")))
    if added > MOST_TOKENS_BEFORE:
        raise UserError(
            f"{label}: post_processor adds {added} tokens to each text; expected at most {MOST_TOKENS_BEFORE}"
        )


def _vocabulary(tokenizer: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Tokens and their numbers."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary.items()
    elif isinstance(vocabulary, list):
        yield from ((pair[0], index) for index, pair in enumerate(vocabulary) if isinstance(pair, list) and pair)
    yield from ((one.get("content"), one.get("id")) for one in _mappings(tokenizer.get("added_tokens")))


def _mappings(values: Any) -> Iterable[dict[str, Any]]:
    return (one for one in values if isinstance(one, dict)) if isinstance(values, list) else ()


def _steps(node: Any) -> Iterator[dict[str, Any]]:
    """A step, or those of a sequence."""
    left = [node]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += [step for key in _STEPS for step in _mappings(one.get(key))]


def _growth(step: dict[str, Any]) -> float:
    """How much longer a step may make a text."""
    text = step.get("content", step.get("prepend"))
    if not isinstance(text, str):
        return _GROWTH.get(str(step.get("type")), 1)
    pattern = step.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(replaced, str) and replaced:
        return max(1.0, len(text.encode(errors="replace")) / len(replaced.encode(errors="replace")))
    return 1.0 + len(text)


def _is_charsmap(step: dict[str, Any]) -> bool:
    """Whether the size that a map of characters begins with is one that it has room for; yes for other steps."""
    text = step.get("precompiled_charsmap")
    if not isinstance(text, str):
        return True
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return len(content) >= 4 and int.from_bytes(content[:4], "little") <= len(content) - 4


def _added(step: dict[str, Any]) -> int:
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
    return sum(sizes.get(piece.get("id"), 0) for piece in pieces if isinstance(piece, dict))
