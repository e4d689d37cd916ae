"""The tokens of a block: a share of a file's documents, in a random order."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt

from jaxpar.config.errors import UserError
from jaxpar.data.prepare.input.compression import reading
from jaxpar.data.prepare.input.documents import location, share_of_documents
from jaxpar.data.prepare.input.files import Input
from jaxpar.data.prepare.job import TokenForm
from jaxpar.data.prepare.output.encoders import PlainText, Text
from jaxpar.data.prepare.output.tokenize import is_validation, text_batches, text_of
from jaxpar.data.randomness import permutation
from jaxpar.data.tokens.tokenizer_file import Tokenizer

KEY_OPTION = "data.text_key"


@dataclass(frozen=True)
class Block:
    """A share of the documents of a file."""

    file: Input
    index: int
    shares: int
    """Blocks of the file."""


@dataclass(frozen=True)
class BlockTask:
    """A block to tokenize."""

    block: Block
    validation_fraction: float
    validation: bool = False
    """Whether to take validation documents; otherwise those to train on."""
    order: tuple[int, ...] = ()
    """Key of the order of the documents; empty for that of the file."""


@dataclass(frozen=True)
class BlockTokens:
    """The documents of a block, end to end."""

    tokens: UInt[np.ndarray, " tokens"]
    stops: Int64[np.ndarray, " documents"]
    """One past the last token of each document."""

    def __len__(self) -> int:
        return len(self.tokens)


class BlockReader:
    """Reads blocks and tokenizes them.

    Args:
        form: of the tokens.
        tokenizer: their tokenizer.
    """

    def __init__(self, form: TokenForm, tokenizer: Tokenizer) -> None:
        self._form, self._encoder = form, PlainText(form, tokenizer)

    def tokens(self, task: BlockTask) -> BlockTokens:
        """The tokens of a block. Raises `UserError` where it cannot be read, or a document is broken."""
        texts = list(self.texts(task))
        order = permutation(len(texts), *task.order).tolist() if task.order else range(len(texts))
        batches = text_batches(texts[index] for index in order)
        documents = [one.tokens for one in chain.from_iterable(map(self._encoder.encoded, batches))]
        tokens = np.concatenate(documents) if documents else np.zeros(0, self._form.dtype)
        return BlockTokens(tokens, np.cumsum([len(one) for one in documents], dtype=np.int64))

    def texts(self, task: BlockTask) -> Iterator[Text]:
        """The documents of a block that are not empty, in the order of the file."""
        block, key = task.block, self._form.text_key
        _check_unchanged(block.file)
        scratch = Path(tempfile.gettempdir())
        contents = share_of_documents(
            block.file, block.index, block.shares, key=key, option=KEY_OPTION, scratch=scratch
        )
        for document in contents:
            text = document.broken or text_of(self._encoder, document.text)
            if isinstance(text, str):
                spaces = (
                    "as many spaces instead of it let the run continue, unless they are in the first or last 64 KiB of "
                    "the file; or "
                )
                raise UserError(
                    f"{location(block.file, document.offset)}: {text}; {spaces if block.file.divisible else ''}leave "
                    "it out with python -m jaxpar.prepare --max-broken and begin a run with its folder"
                )
            if text.raw and is_validation(text.raw, task.validation_fraction) == task.validation:
                yield text


def _check_unchanged(file: Input) -> None:
    """Refuse a file that was written to since it was listed."""
    with reading(file):
        status = os.stat(file.path)
    if (status.st_size, status.st_mtime_ns) != (file.bytes, file.changed):
        raise UserError(f"{file.path} changed while the run read it; the same command continues with the old file")
