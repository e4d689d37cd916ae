"""Stable random numbers: the order of the data must not change with the NumPy version.

NumPy keeps the raw output of its bit generators and of `SeedSequence`, but not the methods of `Generator`
(NEP 19), so everything here is made of the raw bits.
"""

from __future__ import annotations

from math import isqrt

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


ROUNDS = 12
_MASK = 2**64 - 1


class KeyedPermutation:
    """The numbers 0 to `count - 1` in an order that is a function of the key alone, without a table.

    A Feistel network over pairs (a, b) with a < rows and b < columns, where rows times columns is the least such
    product that is not below `count`; a result that is not below `count` is permuted again, until one is (Black and
    Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, sections 3 and 4). The round function is the finalizer
    of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of the number and the round's key.

    Args:
        count: at least 1.
        key: any numbers from 0 to 2**64 - 1.
    """

    def __init__(self, count: int, *key: int) -> None:
        assert count >= 1, "at least one number"
        self._count = count
        self._rows = isqrt(count - 1) + 1
        self._columns = -(-count // self._rows)
        self._keys = [int(bits) for bits in random_bits(ROUNDS, *key)]

    def __len__(self) -> int:
        return self._count

    def permute(self, index: int) -> int:
        """The number at a place; both are from 0 to `count - 1`."""
        assert 0 <= index < self._count, "a place of the permutation"
        value = self._permute_once(index)
        while value >= self._count:
            value = self._permute_once(value)
        return value

    def _permute_once(self, value: int) -> int:
        rows, columns = self._rows, self._columns
        left, right = divmod(value, columns)
        # Rounds come in pairs, each of which changes one side by a function of the other.
        for first, second in zip(self._keys[::2], self._keys[1::2], strict=True):
            left = (left + _mixed(right ^ first)) % rows
            right = (right + _mixed(left ^ second)) % columns
        return left * columns + right


def _mixed(bits: int) -> int:
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
