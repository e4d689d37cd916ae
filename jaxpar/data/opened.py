"""Opened data: the rows to train on and to evaluate on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig
from jaxpar.config.spelling import join_or, quoted
from jaxpar.data.document_rows import DocumentRows
from jaxpar.data.mixture import Mixture
from jaxpar.data.packing import PackedRows, PositionedRows, Row, Rows, RowsWith, plain_rows
from jaxpar.data.pairs import PairRows
from jaxpar.data.shuffle import FIRST_SHUFFLE, ORDERS, SHUFFLE
from jaxpar.data.stream import TokenStream
from jaxpar.data.text import Encode
from jaxpar.data.tokens.token_folder import TokenFolder
from jaxpar.pages.units import plain, plural

ROOM = 0.05
"""Share by which a model's vocabulary may exceed the tokenizer's: published models reserve further tokens."""
STREAM = "stream"
"""Fact of a checkpoint: the positions of `PositionedRows`."""
VALIDATION_SEED = 0
"""Validation rows come in the same order in every run, so that their losses compare."""


@dataclass(frozen=True)
class PairedSplit:
    """The rows of pairs that a split of a token folder has."""

    folder: TokenFolder
    split: str
    """`train` or `validation`, the split that is read."""
    rows: PairRows


@dataclass(frozen=True)
class Data:
    """The data to train on and to evaluate on."""

    train: Rows
    validation: Rows | None
    """Rows to evaluate on, if there are any; of several sets the first."""
    vocab: int
    """Size of the vocabulary: the configured one, or the data's own."""
    separator: int | None
    """Token that ends a document, if any."""
    decode: Callable[[Sequence[int] | np.ndarray], str] | None
    """Tokens to text, where the source supports it."""
    encode_start: Encode | None
    """Text that begins a document to tokens, where the source supports it."""
    description: str
    """A line about the data: its source, and the size of each split."""
    paired: tuple[PairedSplit, ...] = ()
    """The rows of `train` and `validation`, where documents come in pairs."""
    sets: Mapping[str, Rows] = field(default_factory=dict)
    """Sets to evaluate on by their names, where the configuration names some."""

    @property
    def evaluated(self) -> Mapping[str, Rows]:
        """All sets to evaluate on; a single one has no name."""
        return self.sets or ({} if self.validation is None else {"": self.validation})

    def with_rows(self, train: Any, validation: Callable[[Rows], Any]) -> Data:
        """This data with other rows to train on, and those to evaluate on changed by `validation`."""
        sets = {name: validation(rows) for name, rows in self.evaluated.items()}
        return replace(self, train=train, validation=next(iter(sets.values()), None), sets=sets if self.sets else {})

    def with_fields(self, more: Callable[[Row], Row]) -> Data:
        """This data with the fields that `more` makes of each row."""
        return self.with_rows(RowsWith(self.train, more), lambda rows: RowsWith(rows, more))

    @property
    def facts(self) -> dict[str, object]:
        """The state, besides the step, that a checkpoint saves to continue with this data, as JSON.

        `shuffle` is the version of the order (None where text is generated), and `mixture` the weights, if any.
        """
        train = plain_rows(self.train)
        return {"shuffle": train.shuffle, "mixture": train.facts if isinstance(train, Mixture) else None}

    def positions(self, example: int) -> dict[str, Any] | None:
        """`PositionedRows.positions` of the rows to train on; None where they need none."""
        train = plain_rows(self.train)
        return train.positions(example) if isinstance(train, PositionedRows) else None

    def continued(self, facts: Mapping[str, Any], example: int) -> Data:
        """This data, continued at `example` from the facts of a checkpoint.

        Raises:
            UserError: a later release saved it, with an order that this one does not know.
        """
        train = self.train
        if isinstance(train, RowsWith):
            plain = replace(self, train=train.plain).continued(facts, example)
            return replace(self, train=train.like(plain.train))
        if isinstance(train, PositionedRows):
            return replace(self, train=train.continued(facts[STREAM]))
        version = facts["shuffle"]
        if version is not None:
            if version not in ORDERS:
                raise UserError(
                    f"the checkpoint has its data in the order of version {version}, and this release has versions "
                    f"{join_or(map(str, ORDERS))}; continue with the release that saved it"
                )
            train = train.shuffled(version)
        if facts.get("mixture") is not None and isinstance(train, Mixture):
            train = train.continued(facts["mixture"], example)
        return replace(self, train=train)

    @property
    def examples(self) -> int | None:
        """Rows to train on, where `data.max_epochs` ends them; None where they begin again."""
        train = self.train.plain if isinstance(self.train, RowsWith) else self.train
        return train.examples if isinstance(train, Mixture) else None

    def epochs_text(self, examples: int) -> str:
        """`name 1.25, other 0.03`: the epochs of each source after `examples` examples."""
        return ", ".join(f"{name} {plain(epochs, 3)}" for name, epochs in self.train.epochs(examples).items())


def train_rows(stream: TokenStream, config: DataConfig, seed: int, name: str) -> PackedRows | DocumentRows:
    """The rows of a stream to train on: of text, or of whole conversations. Raises `NoRow`, a `UserError`."""
    return _rows(stream, config, seed, name, SHUFFLE)


def validation_rows(stream: TokenStream, config: DataConfig, name: str) -> PackedRows | DocumentRows:
    """The validation rows, in the same order in every run and release, so that losses compare. Raises `NoRow`."""
    return _rows(stream, config, VALIDATION_SEED, name, FIRST_SHUFFLE)


def _rows(stream: TokenStream, config: DataConfig, seed: int, name: str, shuffle: int) -> PackedRows | DocumentRows:
    length = config.sequence_length
    if stream.loss_mask is not None:
        if not config.packed:
            raise UserError(
                f"data.packed: false lets the conversations of a row see each other, and {name} has conversations; "
                "expected true"
            )
        return DocumentRows(stream, sequence_length=length, seed=seed, name=name, long=config.long_conversations)
    return PackedRows(stream, sequence_length=length, packed=config.packed, seed=seed, name=name, shuffle=shuffle)


def split_sizes(train: TokenStream, validation: TokenStream | None, document: str) -> str:
    """Words for how much is in the two splits."""
    return f"{size(train, document)} to train on, {validation_size(validation)}"


def size(stream: TokenStream, document: str) -> str:
    """Words for how much is in a stream."""
    return f"{plural(len(stream), 'token')} in {plural(len(stream.starts), document)}"


def validation_size(validation: TokenStream | None) -> str:
    """Words for the size of the validation data."""
    if validation is None:
        return "nothing for validation"
    return f"{len(validation):,} in {len(validation.starts):,} for validation"


def model_vocab(vocab: int | None, tokens: int, key: str, path: Path) -> int:
    """Size of a model's vocabulary, by default the tokenizer's. Raises `UserError` for one that does not match it."""
    if vocab is None:
        return tokens
    largest = int(tokens * (1 + ROOM))
    if not tokens <= vocab <= largest:
        raise UserError(
            f"model.vocab={vocab} does not match the tokenizer of {key}={quoted(str(path))}, whose vocabulary is "
            f"{tokens}; "
            f"expected {tokens} (up to {largest} leaves room), or null"
        )
    return vocab
