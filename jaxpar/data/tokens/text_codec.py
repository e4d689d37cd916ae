"""Text to tokens and back with a tokenizer: the one policy for special tokens, which docs/special-tokens.md states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from jaxpar.data.tokens.tokenizer_file import Tokenizer, load_tokenizer, without_panics


def tokens_before(tokenizer: Tokenizer) -> list[int]:
    """The tokens that the template of `tokenizer.json` puts before a text, such as `<bos>`.

    Those that it puts behind a text are never used: the end of a document is the separator of its folder.
    """
    for sample in ("a", *tokenizer.get_vocab(with_added_tokens=False)):
        encoding = tokenizer.encode(sample)
        if 0 in encoding.special_tokens_mask:
            return encoding.ids[: encoding.special_tokens_mask.index(0)]
    return []


class TextCodec:
    """Text to tokens and back, with a tokenizer that is loaded on first use.

    Args:
        path: a `tokenizer.json`.
        label: its name in messages; by default the path.
    """

    def __init__(self, path: Path, label: str | None = None) -> None:
        self._path, self._label = path, str(path) if label is None else label

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the library `tokenizers`."""
        return load_tokenizer(self._path, self._label)

    @cached_property
    def before(self) -> list[int]:
        """`tokens_before` of the tokenizer."""
        with without_panics(self._label):
            return tokens_before(self.tokenizer)

    @cached_property
    def special(self) -> Mapping[str, int]:
        """Special tokens by their names."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        return {token.content: token_id for token_id, token in added if token.special}

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """Encode a text that follows another one, without adding tokens.

        With `special_tokens`, names of special tokens in it become those tokens; otherwise they are plain text.
        """
        self.tokenizer.encode_special_tokens = not special_tokens
        with without_panics(self._label):
            return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_start(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The tokens of a text that begins a document: `encode` after the tokens of `before`, which are not repeated
        where the text has them already."""
        tokens = self.encode(text, special_tokens=special_tokens)
        return tokens if tokens[: len(self.before)] == self.before else [*self.before, *tokens]

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of some tokens; special tokens are left out."""
        with without_panics(self._label):
            return self.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True)
