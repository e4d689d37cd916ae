"""Rows of masked tokens: some are hidden from the model, which predicts them from both sides (BERT, arXiv:1810.04805).

Which tokens are drawn depends on (seed, example) alone, and an example is a step's row on every layout. Of those drawn
`MASKED` become the mask token, `RANDOM` another token of the vocabulary, and the rest stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.schema import Config
from jaxpar.config.spelling import did_you_mean, join_or, named, quoted
from jaxpar.data.opened import VALIDATION_SEED, Data
from jaxpar.data.packing import PackedRows, Row, Rows, RowsWith
from jaxpar.data.randomness import uniforms
from jaxpar.data.tokens.span_file import Spans, read_spans, span_file
from jaxpar.data.tokens.token_index import TRAIN, VALIDATION, read_index
from jaxpar.data.tokens.triple_file import Triples, read_triples, triple_file
from jaxpar.remote.cache import local_path

MASKED, RANDOM = 0.8, 0.1
"""Shares of the drawn tokens."""
_STREAM = 0x6D61736B
"""Sets these draws apart from others of the same seed."""


@dataclass(frozen=True)
class Masking:
    """Settings of drawing tokens."""

    rate: float
    mask_token: int
    vocab: int
    """Tokens below it may replace others."""
    never: tuple[int, ...] = ()
    """Tokens that are never drawn: they end documents, or stand for a text."""
    rates: tuple[float, ...] = ()
    """Probability of a span of each kind, whose tokens are drawn together; NaN where they are drawn one by one."""


@dataclass(frozen=True)
class Related:
    """The triples of a split, each with its weight."""

    triples: Triples
    weights: np.ndarray
    most: int
    """Triples of a row that are used."""

    def row_triples(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Triples.row_triples`."""
        return self.triples.row_triples(tokens, self.weights, self.most)


class MaskedRows(RowsWith):
    """Rows whose `tokens` have some replaced, `labels` are the tokens themselves, and `mask` has 1 for those drawn.

    Only tokens that the rows' mask counts as targets are drawn. Nothing predicts the first token of a document there:
    it is drawn if the next one may be.
    """

    def __init__(
        self, rows: Rows, masking: Masking, seed: int, spans: Spans | None = None, related: Related | None = None
    ):
        super().__init__(rows, lambda row: {})
        self._masking, self._seed, self._spans, self._related = masking, seed, spans, related

    def row(self, example: int) -> Row:
        """The row of an example."""
        row, masking = self.plain.row(example), self._masking
        tokens, segments, mask = row["tokens"], row["segments"], row["mask"]
        is_target = np.where(np.diff(segments, prepend=-1) == 0, np.roll(mask, 1), mask) > 0
        of_draw, fate, other = uniforms(3 * len(tokens), _STREAM, self._seed, example).reshape(3, -1)
        rate = np.full(len(tokens), masking.rate)
        if self._spans is not None:
            of_draw, rate = self._share_span_draws(example, of_draw, rate)
        drawn = (of_draw < rate) & (segments > 0) & is_target & ~np.isin(tokens, masking.never)
        others = (other * masking.vocab).astype(np.int32)
        replaced = np.where(fate < MASKED, masking.mask_token, np.where(fate < MASKED + RANDOM, others, tokens))
        more: Row = {}
        if self._related is not None:
            assert isinstance(self.plain, PackedRows), "triples are of the rows of one folder"
            more["triples"], more["triple_weights"] = self._related.row_triples(self.plain.places(example))
        return row | {
            "tokens": np.where(drawn, replaced, tokens).astype(np.int32),
            "labels": tokens,
            "mask": drawn.astype(np.float32),
            **more,
        }

    def like(self, rows: Rows) -> MaskedRows:
        """Other rows with the same draws."""
        return MaskedRows(rows, self._masking, self._seed, self._spans, self._related)

    def _share_span_draws(self, example: int, draws: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws and rates of tokens, those of a span alike: of its first token in the row, and of its kind."""
        assert self._spans is not None and isinstance(self.plain, PackedRows), "spans are of the rows of one folder"
        span = self._spans.span_indices(self.plain.places(example))
        known = np.append(np.array(self._masking.rates)[self._spans.kind], np.nan)[span]
        together = ~np.isnan(known)
        # A span whose tokens a row has apart, of two epochs, would be drawn twice: it is the same span.
        _, first, which = np.unique(span, return_index=True, return_inverse=True)
        return np.where(together, draws[first][which], draws), np.where(together, known, rate)


def masked_data(config: Config, data: Data, reference: object = None) -> Data:
    """Data with masked rows. Validation rows are masked alike in every run.

    Raises `UserError` for tokens that the vocabulary does not have, and for spans that the data does not have.
    """
    del reference
    loss = config.loss
    assert loss.mask_token is not None, "validation checks that there is one"
    if loss.mask_token >= data.vocab:
        raise UserError(f"loss.mask_token: {loss.mask_token}; expected less than the vocabulary ({data.vocab})")
    for token in loss.unmasked:
        if not 0 <= token < data.vocab:
            raise UserError(
                f"loss.unmasked: {token}; expected tokens from 0 to {data.vocab - 1}, those of the vocabulary"
            )
    never = (*loss.unmasked, loss.mask_token, *(() if data.separator is None else (data.separator,)))
    masking = Masking(loss.rate, loss.mask_token, data.vocab, never)

    def masked(rows: Rows, split: str, seed: int) -> MaskedRows:
        related = _related(config, rows, split) if loss.contrastive.weight else None
        if not loss.spans:
            return MaskedRows(rows, masking, seed, related=related)
        spans = _spans(config, rows, split)
        rates = tuple(loss.spans.get(name, np.nan) for name in spans.names)
        return MaskedRows(rows, replace(masking, rates=rates), seed, spans, related)

    train = masked(data.train, TRAIN, config.run.seed)
    return data.with_rows(train, lambda rows: masked(rows, VALIDATION, VALIDATION_SEED))


def _spans(config: Config, rows: Rows, split: str) -> Spans:
    """The spans of a split. Raises `UserError` where there are none, or none of a kind that has a rate."""
    folder = _marked_folder(config, rows, "loss.spans", "--spans")
    spans = read_spans(span_file(folder, split), read_index(folder).digest)
    _check_names(config.loss.spans, spans.names, f"loss.spans: {{}} is not a kind of the spans of {named(folder)}")
    return spans


def _related(config: Config, rows: Rows, split: str) -> Related:
    """The triples of a split, with weights. Raises `UserError` where there are none, or none of a named relation."""
    settings = config.loss.contrastive
    folder = _marked_folder(config, rows, "loss.contrastive", "--triples")
    triples = read_triples(triple_file(folder, split), read_index(folder).digest)
    words = f"loss.contrastive.relations: {{}} is not a relation of the triples of {named(folder)}"
    _check_names(settings.relations, triples.names, words)
    of_relation = np.array([settings.relations.get(name, 1.0) for name in triples.names], np.float32)
    of_hop = np.float32(settings.hop_decay) ** (triples.hop - 1).astype(np.float32)
    return Related(triples, of_relation[triples.relation] * of_hop, settings.most)


def _marked_folder(config: Config, rows: Rows, key: str, flag: str) -> Path:
    """The folder of the rows. Raises `UserError` where they are not of one folder of text."""
    data = config.data
    if data.path is None or data.validation_path or data.validation or not isinstance(rows, PackedRows):
        raise UserError(
            f"{key}: data.source is {data.source}; expected data.path with one folder of text, without "
            f"data.validation_path and data.validation, which python -m jaxpar.prepare {flag} marks"
        )
    return local_path(data.path, "data.path")


def _check_names(asked: Iterable[str], names: Sequence[str], words: str) -> None:
    """Refuse a name that nothing in a file has."""
    for name in asked:
        if name not in names:
            near = did_you_mean(name, names) or f"; there are {join_or(names)}"
            raise UserError(f"{words.format(quoted(name, 80))}{near}")
