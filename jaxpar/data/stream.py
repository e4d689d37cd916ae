"""A token stream: documents laid end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int32, Int64, UInt


class Tokens(Protocol):
    """The tokens of a stream: an array of one dimension, or an object that is indexed like one."""

    @property
    def dtype(self) -> Any:
        """An unsigned type."""
        ...

    @property
    def ndim(self) -> int:
        """1"""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> UInt[np.ndarray, " n"]:
        """The tokens of a slice, or at integer places."""
        ...


@dataclass(frozen=True)
class TokenStream:
    """Documents one after the other; document `d` is `tokens[starts[d]:starts[d + 1]]`, the last one ends the stream.

    `tokens` may be in files: nothing here reads all of it. No document is empty.
    """

    tokens: Tokens
    starts: Int64[np.ndarray, " documents"]

    def __post_init__(self) -> None:
        assert self.tokens.ndim == 1 and self.tokens.dtype.kind == "u", "tokens are unsigned and in one dimension"
        assert len(self.starts) and self.starts[0] == 0, "the first document starts the stream"
        assert (self.lengths > 0).all(), "documents are in order and not empty"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Int64[np.ndarray, " documents"]:
        """Tokens of each document."""
        return np.diff(self.starts, append=len(self.tokens))


def prompt(heldout: TokenStream, tokens: int) -> Int32[np.ndarray, " prompt"]:
    """The first `tokens` tokens of the longest document, to be continued by a sample.

    Shorter where the document is; its last token (which may be the end-of-document token) is left out.
    """
    longest = int(np.argmax(heldout.lengths))
    start, length = int(heldout.starts[longest]), int(heldout.lengths[longest])
    return heldout.tokens[start : start + max(1, min(tokens, length - 1))].astype(np.int32)
