"""A token stream: documents laid end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Int, Int32, Int64, UInt
from numpy.typing import ArrayLike


class Tokens(Protocol):
    """The tokens of a stream: an array of one dimension, or an object that is indexed like one."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype, an unsigned integer."""
        ...

    @property
    def ndim(self) -> int:
        """The number of dims, 1."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | Int[np.ndarray, " n"], /) -> UInt[np.ndarray, " n"]:
        """The tokens of a slice, or at integer places."""
        ...


class Starts(Protocol):
    """Starts of the documents of a stream: an array of one dimension, or an object that is used like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Int64[np.ndarray, " n"]:
        """The starts of some documents."""
        ...

    def searchsorted(self, v: ArrayLike, /, side: Literal["left", "right"] = "left") -> Int[np.ndarray, "..."]:
        """The number of documents that start before a position, or (`right`) at it or before it."""
        ...


@dataclass(frozen=True)
class TokenStream:
    """Documents one after the other; document `d` is `tokens[starts[d]:starts[d + 1]]`, the last one ends the stream.

    `tokens` and `starts` may be in files: nothing here reads all of them but `lengths`. No document is empty.
    """

    tokens: Tokens
    starts: Starts
    loss_mask: Tokens | None = None
    """1 for each token that is a target of the loss and 0 for the others, as uint8; None where all are targets. Marked
    answers that are undesirable have 2 instead of 1."""

    def __post_init__(self) -> None:
        assert self.tokens.ndim == 1 and self.tokens.dtype.kind == "u", "tokens are unsigned and in one dimension"
        assert self.loss_mask is None or len(self.loss_mask) == len(self.tokens), "a value for each token"
        assert len(self.starts), "at least one document"
        if isinstance(self.starts, np.ndarray):  # Those in files are checked when they are read.
            assert self.starts[0] == 0, "the first document starts the stream"
            assert (self.lengths > 0).all(), "documents are in order and not empty"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Int64[np.ndarray, " documents"]:
        """Tokens of each document: a table of all of them."""
        return np.diff(self.starts[:], append=len(self.tokens))


def prompt(validation: TokenStream, tokens: int) -> Int32[np.ndarray, " prompt"]:
    """The first `tokens` tokens of the longest document, to be continued by a sample.

    Shorter where the document is; its last token (which may be the end-of-document token) is left out.
    """
    lengths = validation.lengths
    longest = int(np.argmax(lengths))
    start, length = int(lengths[:longest].sum()), int(lengths[longest])
    return validation.tokens[start : start + max(1, min(tokens, length - 1))].astype(np.int32)
