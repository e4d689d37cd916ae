"""`data.source: synthetic`, generated text: endless, of any vocabulary, and learnable, for tests and benchmarks.

Documents are made of phrases. A phrase begins with a token drawn from a skewed distribution and continues, with
probability 0.8 at each token, by a fixed rule: the next token is a hash of the previous token and of the one before
that modulo 8. So there is much to learn from one token of context and more from two, from a number of rules that grows
only with the vocabulary. The language is always the same; the seed determines the text.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Int64, UInt32, UInt64

from jaxpar.config.errors import UserError
from jaxpar.config.schema import DataConfig
from jaxpar.data.opened import VALIDATION_SEED, Data
from jaxpar.data.packing import Row, assemble
from jaxpar.data.randomness import to_unit, uniforms
from jaxpar.data.stream import TokenStream

DEFAULT_VOCAB = 256
"""Vocabulary when the configuration names none."""

_CONTINUE = 0.8
_CLASSES = 8
_SHORTEST, _LONGEST = 16, 256
_SAMPLE_TOKENS = 1 << 18
_ROW, _SAMPLE = 0, 1


def open_synthetic(config: DataConfig, vocab: int | None, seed: int) -> Data:
    """The data of `data.source: synthetic`; see `open_data`."""
    vocab = DEFAULT_VOCAB if vocab is None else vocab

    def rows(seed: int, split: int) -> SyntheticRows:
        length = config.sequence_length
        return SyntheticRows(vocab=vocab, sequence_length=length, packed=config.packed, seed=seed, split=split)

    return Data(
        train=rows(seed, 0),
        validation=rows(VALIDATION_SEED, 1),
        vocab=vocab,
        separator=vocab - 1,
        decode=None,
        encode_start=None,
        description=f"synthetic text: endless, vocabulary {vocab}",
    )


class SyntheticRows:
    """Rows of generated documents; a row begins with a document and is a function of (seed, split, example).

    Args:
        vocab: size of the vocabulary; its last token ends a document.
        sequence_length: tokens per row.
        packed: keep the documents of a row apart (see `assemble`).
        seed: determines the text together with `split`.
        split: number of the split, so that training and evaluation see different text.

    Raises:
        UserError: a vocabulary of fewer than 2 tokens.
    """

    def __init__(self, *, vocab: int, sequence_length: int, packed: bool, seed: int, split: int) -> None:
        if vocab < 2:
            raise UserError(f"model.vocab={vocab} is too small for data.source=synthetic; expected at least 2")
        self.vocab = vocab
        self.sequence_length = sequence_length
        self.packed = packed
        self.seed = seed
        self.split = split

    @property
    def shuffle(self) -> None:
        """None: rows are generated in their order."""
        return None

    def shuffled(self, version: int) -> SyntheticRows:
        """Return these rows, which have no other order."""
        return self

    def row(self, example: int) -> Row:
        """The row of an example."""
        tokens, documents = generate(self.sequence_length + 1, self.vocab, self.seed, self.split, _ROW, example)
        return assemble(tokens, documents, sequence_length=self.sequence_length, packed=self.packed)

    def epochs(self, examples: int) -> dict[str, float]:
        """Empty: generated text is endless."""
        return {}

    @property
    def stream(self) -> TokenStream:
        """A sample of the language: 2**18 tokens, drawn separately from the rows."""
        return self._sample

    @cached_property
    def _sample(self) -> TokenStream:
        tokens, documents = generate(_SAMPLE_TOKENS, self.vocab, self.seed, self.split, _SAMPLE)
        return TokenStream(tokens, np.flatnonzero(np.diff(documents, prepend=-1)))


def generate(count: int, vocab: int, *key: int) -> tuple[UInt32[np.ndarray, " count"], Int64[np.ndarray, " count"]]:
    """`count` tokens of text, and the number of each token's document; the last document may be cut."""
    lengths = _SHORTEST + uniforms(count // _SHORTEST + 1, *key, 0) * (_LONGEST + 1 - _SHORTEST)
    stops = np.cumsum(lengths.astype(np.int64))
    documents = np.searchsorted(stops, np.arange(count), side="right")
    begins = np.diff(documents, prepend=-1) > 0
    fresh = begins | (uniforms(count, *key, 1) >= _CONTINUE)
    tokens = np.where(fresh, _skew(uniforms(count, *key, 2), vocab), 0)
    places = np.arange(count)
    age = places - np.maximum.accumulate(np.where(fresh, places, 0))
    # All phrases grow together: one step per token of the longest phrase instead of one per token of the text.
    for step in range(1, int(age.max(initial=0)) + 1):
        here = np.flatnonzero(age == step)
        before = tokens[here - 2] % _CLASSES + 1 if step > 1 else np.zeros_like(here)
        tokens[here] = _skew(to_unit(_hash(before * vocab + tokens[here - 1])), vocab)
    tokens[stops[stops <= count] - 1] = vocab - 1
    return tokens.astype(np.uint32), documents


def _skew(unit: np.ndarray, vocab: int) -> Int64[np.ndarray, " count"]:
    """Numbers in [0, 1) as tokens below `vocab - 1`, small ones being more frequent (as the inverse square root)."""
    return (unit * unit * (vocab - 1)).astype(np.int64)


def _hash(numbers: Int64[np.ndarray, " count"]) -> UInt64[np.ndarray, " count"]:
    """Steele, Lea and Flood's SplitMix64 (OOPSLA 2014): 64 well-mixed bits for each number."""
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
