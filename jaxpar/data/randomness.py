"""Stable random numbers: the order of the data must not change with the NumPy version.

NumPy keeps the raw output of its bit generators and of `SeedSequence`, but not the methods of `Generator`
(NEP 19), so everything here is made of the raw bits.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64, UInt64


def random_bits(count: int, *key: int) -> UInt64[np.ndarray, " count"]:
    """64 random bits for each of `count` places, a function of the key alone."""
    words = [word for part in key for word in (part & 0xFFFFFFFF, part >> 32 & 0xFFFFFFFF)]
    return np.random.PCG64(np.random.SeedSequence(words)).random_raw(count)


def permutation(count: int, *key: int) -> Int64[np.ndarray, " count"]:
    """The numbers 0 to `count - 1` in an order that is a function of the key alone."""
    return np.argsort(random_bits(count, *key), kind="stable")


def uniforms(count: int, *key: int) -> Float64[np.ndarray, " count"]:
    """`count` numbers in [0, 1), a function of the key alone."""
    return to_unit(random_bits(count, *key))


def to_unit(bits: UInt64[np.ndarray, " count"]) -> Float64[np.ndarray, " count"]:
    """The upper 53 of 64 bits as a number in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53
