"""Opened data: the rows to train on and to evaluate on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxpar.config.schema import DataConfig
from jaxpar.data.mixture import Mixture
from jaxpar.data.packing import PackedRows, Rows
from jaxpar.data.stream import TokenStream

HELDOUT_SEED = 0
"""Held-out rows come in the same order in every run, so that their losses compare."""


@dataclass(frozen=True)
class Data:
    """The data to train on and to evaluate on."""

    train: Rows
    heldout: Rows | None
    """None when there is nothing to evaluate on."""
    vocab: int
    """Size of the vocabulary: the configured one, or the data's own."""
    separator: int | None
    """Token that ends a document, if any."""
    decode: Callable[[Sequence[int] | np.ndarray], str] | None
    """Tokens to text, where the source supports it."""
    encode: Callable[[str], list[int]] | None
    """Text to tokens, where the source supports it."""
    description: str
    """A line about the data: its source, and the size of each split."""

    @property
    def facts(self) -> dict[str, Any] | None:
        """What a checkpoint must hold, apart from its step, to continue with this data, as JSON; None for nothing."""
        return self.train.facts if isinstance(self.train, Mixture) else None

    def continued(self, facts: Mapping[str, Any] | None, example: int) -> Data:
        """This data, continued at `example` from the facts of a checkpoint."""
        if facts is None or not isinstance(self.train, Mixture):
            return self
        return replace(self, train=self.train.continued(facts, example))

    def epochs_told(self, examples: int) -> str:
        """`name 1.25, other 0.03`: the epochs of each source, once so many examples are used."""
        return ", ".join(f"{name} {epochs:.3g}" for name, epochs in self.train.epochs(examples).items())


def packed_rows(stream: TokenStream, config: DataConfig, seed: int, name: str) -> PackedRows:
    """The rows of a stream. Raises `UserError` when it is shorter than one."""
    return PackedRows(stream, sequence_length=config.sequence_length, packed=config.packed, seed=seed, name=name)


def split_sizes(train: TokenStream, heldout: TokenStream | None, documents: str) -> str:
    """Words for how much is in the two splits."""
    return f"{size(train, documents)} to train on, {heldout_size(heldout)}"


def size(stream: TokenStream, documents: str) -> str:
    """Words for how much is in a stream."""
    return f"{len(stream):,} tokens in {len(stream.starts):,} {documents}"


def heldout_size(heldout: TokenStream | None) -> str:
    """Words for how much is held out."""
    return "nothing held out" if heldout is None else f"{len(heldout):,} in {len(heldout.starts):,} held out"
