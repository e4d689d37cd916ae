"""Opening the data that a configuration names."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig
from jaxpar.data import stdlib, synthetic
from jaxpar.data.packing import PackedRows, Rows
from jaxpar.data.stream import TokenStream
from jaxpar.data.token_file import read_token_file

_HELDOUT_SEED = 0
"""Held-out rows come in the same order in every run, so that their losses compare."""


@dataclass(frozen=True)
class Data:
    """What there is to train on and to evaluate on."""

    train: Rows
    heldout: Rows | None
    """None when there is nothing to evaluate on."""
    vocab: int
    """Size of the vocabulary: the configured one, or the data's own."""
    separator: int | None
    """Token that ends a document, if any."""
    decode: Callable[[Sequence[int] | np.ndarray], str] | None
    """Tokens to text, where the source knows how."""
    encode: Callable[[str], list[int]] | None
    """Text to tokens, where the source knows how."""
    description: str
    """A line about the data: where it is from, and how much is in each split."""


def open_data(config: DataConfig, *, vocab: int | None, seed: int) -> Data:
    """The data that `config` names.

    Args:
        config: the `data` section.
        vocab: `model.vocab`; None takes the vocabulary from the data.
        seed: order of the training data.

    Raises:
        UserError: the data is missing, broken, too short for a row, or has tokens that `vocab` does not.
    """
    return {"stdlib": _open_stdlib, "tokens": _open_tokens, "synthetic": _open_synthetic}[config.source](
        config, vocab, seed
    )


def _open_stdlib(config: DataConfig, vocab: int | None, seed: int) -> Data:
    if vocab is not None and vocab < stdlib.VOCAB:
        raise UserError(
            f"model.vocab={vocab} is too small for data.source=stdlib (bytes and an end-of-document token); "
            f"expected at least {stdlib.VOCAB}, or null"
        )
    train, heldout = stdlib.read_stdlib()
    return Data(
        train=_rows(train, config, seed),
        heldout=_rows(heldout, config, _HELDOUT_SEED),
        vocab=vocab or stdlib.VOCAB,
        separator=stdlib.END_OF_DOCUMENT,
        decode=stdlib.decode,
        encode=stdlib.encode,
        description=f"standard library of Python {platform.python_version()}: {_split_sizes(train, heldout, 'files')}",
    )


def _open_tokens(config: DataConfig, vocab: int | None, seed: int) -> Data:
    if config.path is None:
        raise UserError("data.path is not set; data.source=tokens expects the path of a .npy token file")
    separator = config.separator
    train, largest = read_token_file(config.path, key="data.path", separator=separator, vocab=vocab)
    if separator is not None and len(train.starts) == 1 and train.tokens[-1] != separator:
        raise UserError(
            f"data.separator={separator} does not occur in data.path={config.path!r}; expected the token that ends "
            "its documents, or null for a file that is one document"
        )
    heldout = None
    if config.heldout_path is not None:
        heldout, other = read_token_file(config.heldout_path, key="data.heldout_path", separator=separator, vocab=vocab)
        largest = max(largest, other)
    return Data(
        train=_rows(train, config, seed),
        heldout=None if heldout is None else _rows(heldout, config, _HELDOUT_SEED),
        vocab=vocab or largest + 1,
        separator=separator,
        decode=None,
        encode=None,
        description=f"{config.path}: {_split_sizes(train, heldout, 'documents')}",
    )


def _open_synthetic(config: DataConfig, vocab: int | None, seed: int) -> Data:
    vocab = synthetic.DEFAULT_VOCAB if vocab is None else vocab

    def rows(seed: int, split: int) -> synthetic.SyntheticRows:
        return synthetic.SyntheticRows(
            vocab=vocab, sequence_length=config.sequence_length, packed=config.packed, seed=seed, split=split
        )

    return Data(
        train=rows(seed, 0),
        heldout=rows(_HELDOUT_SEED, 1),
        vocab=vocab,
        separator=vocab - 1,
        decode=None,
        encode=None,
        description=f"synthetic text: endless, vocabulary {vocab}",
    )


def _rows(stream: TokenStream, config: DataConfig, seed: int) -> PackedRows:
    return PackedRows(stream, sequence_length=config.sequence_length, packed=config.packed, seed=seed)


def _split_sizes(train: TokenStream, heldout: TokenStream | None, documents: str) -> str:
    text = f"{len(train):,} tokens in {len(train.starts):,} {documents} to train on"
    if heldout is None:
        return f"{text}, nothing held out"
    return f"{text}, {len(heldout):,} in {len(heldout.starts):,} held out"
