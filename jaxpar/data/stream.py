"""A token stream: documents laid end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64, UInt


@dataclass(frozen=True)
class TokenStream:
    """Documents one after the other; document `d` is `tokens[starts[d]:starts[d + 1]]`, the last one ends the stream.

    `tokens` may be a memory-mapped file: nothing here reads all of it. No document is empty.
    """

    tokens: UInt[np.ndarray, " tokens"]
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
