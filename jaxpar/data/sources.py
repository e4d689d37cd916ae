"""Opening the data that a configuration names."""

from __future__ import annotations

import platform

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig
from jaxpar.data import stdlib, synthetic
from jaxpar.data.opened import HELDOUT_SEED, Data, heldout_rows, packed_rows, split_sizes
from jaxpar.data.token_sources import open_tokens


def open_data(config: DataConfig, *, vocab: int | None, seed: int) -> Data:
    """The data that `config` names.

    Args:
        config: the `data` section.
        vocab: `model.vocab`; None takes the vocabulary from the data.
        seed: order of the training data.

    Raises:
        UserError: the data is missing, broken, too short for a row, or has tokens that `vocab` does not.
    """
    return {"stdlib": _open_stdlib, "tokens": open_tokens, "synthetic": _open_synthetic}[config.source](
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
        train=packed_rows(train, config, seed, "stdlib"),
        heldout=heldout_rows(heldout, config, "held-out stdlib"),
        vocab=vocab or stdlib.VOCAB,
        separator=stdlib.END_OF_DOCUMENT,
        decode=stdlib.decode,
        encode_start=stdlib.encode,
        description=f"standard library of Python {platform.python_version()}: {split_sizes(train, heldout, 'file')}",
    )


def _open_synthetic(config: DataConfig, vocab: int | None, seed: int) -> Data:
    vocab = synthetic.DEFAULT_VOCAB if vocab is None else vocab

    def rows(seed: int, split: int) -> synthetic.SyntheticRows:
        return synthetic.SyntheticRows(
            vocab=vocab, sequence_length=config.sequence_length, packed=config.packed, seed=seed, split=split
        )

    return Data(
        train=rows(seed, 0),
        heldout=rows(HELDOUT_SEED, 1),
        vocab=vocab,
        separator=vocab - 1,
        decode=None,
        encode_start=None,
        description=f"synthetic text: endless, vocabulary {vocab}",
    )
