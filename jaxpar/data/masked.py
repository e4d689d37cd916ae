"""Rows of masked tokens: some are hidden from the model, which predicts them from both sides (BERT, arXiv:1810.04805).

Which tokens are drawn depends on (seed, example) alone, and an example is a step's row on every layout. Of those drawn
`MASKED` become the mask token, `RANDOM` another token of the vocabulary, and the rest stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.schema import Config
from jaxpar.config.spelling import did_you_mean, named, one_of, quoted
from jaxpar.data.opened import HELDOUT_SEED, Data
from jaxpar.data.packing import PackedRows, Row, Rows, RowsWith
from jaxpar.data.randomness import uniforms
from jaxpar.data.tokens.span_file import Spans, read_spans, span_file
from jaxpar.data.tokens.token_index import HELDOUT, TRAIN, read_index

MASKED, RANDOM = 0.8, 0.1
"""Shares of the drawn tokens."""
_STREAM = 0x6D61736B
"""Sets these draws apart from others of the same seed."""


@dataclass(frozen=True)
class Masking:
    """How tokens are drawn."""

    rate: float
    mask_token: int
    vocab: int
    """Tokens below it may replace others."""
    never: tuple[int, ...] = ()
    """Tokens that are never drawn: they end documents, or stand for a text."""
    rates: tuple[float, ...] = ()
    """Probability of a span of each kind, whose tokens are drawn together; NaN where they are drawn one by one."""


class MaskedRows(RowsWith):
    """Rows whose `tokens` have some replaced, `labels` are the tokens themselves, and `mask` has 1 for those drawn.

    Only tokens that the rows' mask counts as targets are drawn. Nothing predicts the first token of a document there:
    it is drawn if the next one may be.
    """

    def __init__(self, rows: Rows, masking: Masking, seed: int, spans: Spans | None = None):
        super().__init__(rows, lambda row: {})
        self._masking, self._seed, self._spans = masking, seed, spans

    def row(self, example: int) -> Row:
        """The row of an example."""
        row, masking = self.plain.row(example), self._masking
        tokens, segments, mask = row["tokens"], row["segments"], row["mask"]
        is_target = np.where(np.diff(segments, prepend=-1) == 0, np.roll(mask, 1), mask) > 0
        of_draw, fate, other = uniforms(3 * len(tokens), _STREAM, self._seed, example).reshape(3, -1)
        rate = np.full(len(tokens), masking.rate)
        if self._spans is not None:
            of_draw, rate = self._by_span(example, of_draw, rate)
        drawn = (of_draw < rate) & (segments > 0) & is_target & ~np.isin(tokens, masking.never)
        others = (other * masking.vocab).astype(np.int32)
        replaced = np.where(fate < MASKED, masking.mask_token, np.where(fate < MASKED + RANDOM, others, tokens))
        return row | {
            "tokens": np.where(drawn, replaced, tokens).astype(np.int32),
            "labels": tokens,
            "mask": drawn.astype(np.float32),
        }

    def like(self, rows: Rows) -> MaskedRows:
        """Other rows with the same draws."""
        return MaskedRows(rows, self._masking, self._seed, self._spans)

    def _by_span(self, example: int, draws: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws and rates of tokens, those of a span alike: of its first token in the row, and of its kind."""
        assert self._spans is not None and isinstance(self.plain, PackedRows), "spans are of the rows of one folder"
        span = self._spans.at(self.plain.places(example))
        known = np.append(np.array(self._masking.rates)[self._spans.kind], np.nan)[span]
        together = ~np.isnan(known)
        # A span whose tokens a row has apart, of two epochs, would be drawn twice: it is the same span.
        _, first, which = np.unique(span, return_index=True, return_inverse=True)
        return np.where(together, draws[first][which], draws), np.where(together, known, rate)


def masked_data(config: Config, data: Data, reference: object = None) -> Data:
    """Data with masked rows. Held-out rows are masked alike in every run.

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
        if not loss.spans:
            return MaskedRows(rows, masking, seed)
        spans = _spans(config, rows, split)
        rates = tuple(loss.spans.get(name, np.nan) for name in spans.names)
        return MaskedRows(rows, replace(masking, rates=rates), seed, spans)

    train = masked(data.train, TRAIN, config.run.seed)
    heldout = None if data.heldout is None else masked(data.heldout, HELDOUT, HELDOUT_SEED)
    return replace(data, train=train, heldout=heldout)


def _spans(config: Config, rows: Rows, split: str) -> Spans:
    """The spans of a split. Raises `UserError` where there are none, or none of a kind that has a rate."""
    data = config.data
    if data.path is None or data.heldout_path is not None or not isinstance(rows, PackedRows):
        raise UserError(
            f"loss.spans: data.source is {data.source}; expected data.path with one folder of text, without "
            "data.heldout_path, whose spans python -m jaxpar.prepare --spans marks"
        )
    folder = user_path(data.path, "data.path")
    spans = read_spans(span_file(folder, split), read_index(folder).digest)
    for name in config.loss.spans:
        if name not in spans.names:
            near = did_you_mean(name, spans.names) or f"; there are {one_of(spans.names)}"
            raise UserError(f"loss.spans: {quoted(name, 80)} is no kind of the spans of {named(folder)}{near}")
    return spans
