"""Hashed n-grams: each token, with the one or two before it, in one of a fixed number of buckets.

The functions take arrays of NumPy and of JAX alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import UInt32

ORDERS = 3
"""The longest n-gram, in tokens; each token ends one of each length."""
BEFORE = 2**32 - 1
"""Stands for a token before the first one of a text."""
_SEEDS = 0x9E3779B9, 0x7F4A7C15, 0xF39CC060
_PRIME = 0x01000193


def buckets(grams: Any, size: int) -> tuple[Any, ...]:
    """The bucket of each token's n-gram, by its length.

    Args:
        grams: uint32 [..., ORDERS], the tokens before each token and the token itself, in order.
        size: the number of buckets, a power of two.
    """
    dtype = np.uint32
    hashed = []
    for length, seed in enumerate(_SEEDS, 1):
        value = grams[..., -1] * dtype(0) + dtype(seed)
        for token in range(length):
            value = (value ^ grams[..., ORDERS - length + token]) * dtype(_PRIME)
        value = (value ^ (value >> dtype(15))) * dtype(0x85EBCA6B)
        hashed.append((value ^ (value >> dtype(13))) & dtype(size - 1))
    return tuple(hashed)


def grams_of(tokens: np.ndarray) -> UInt32[np.ndarray, "token orders"]:
    """Each token of a text with those before it."""
    padded = np.concatenate([np.full(ORDERS - 1, BEFORE, np.uint32), tokens.astype(np.uint32)])
    return np.lib.stride_tricks.sliding_window_view(padded, ORDERS)
