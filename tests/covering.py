"""Rows that cover every pair of values of some factors: far fewer than their product, and every two features meet."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

type Row = dict[str, Any]
type Factors = Mapping[str, tuple[Any, ...]]
type Fits = Callable[[Row], bool]
"""Whether a row, which may have only some of the factors, can be."""


def feasible_pairs(factors: Factors, fits: Fits) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Every ((factor, value), (other factor, value)) that can be in one row."""
    for a, b in itertools.combinations(factors, 2):
        for x, y in itertools.product(factors[a], factors[b]):
            if fits({a: x, b: y}):
                yield (a, x), (b, y)


def covering_rows(factors: Factors, fits: Fits, *, seed: int) -> list[Row]:
    """Rows such that every feasible pair of values occurs in one; greedy and deterministic.

    Sets of (factor, value) are bits of an integer: these rows are made whenever tests are collected.
    """
    left = sorted(feasible_pairs(factors, fits), key=lambda pair: sorted(map(repr, pair)))
    bits = {each: 1 << place for place, each in enumerate((a, x) for a, values in factors.items() for x in values)}
    draw, rows = np.random.default_rng(seed), []
    while left:
        beside = dict.fromkeys(bits, 0)
        """With which values a value makes a pair that no row has yet."""
        for a, b in left:
            beside[a] |= bits[b]
            beside[b] |= bits[a]
        best: Row = {}
        most = 0
        for _ in range(60):
            row = dict(sorted(left[int(draw.integers(len(left)))]))
            held = sum(bits[each] for each in row.items())
            for name in map(str, draw.permutation([name for name in factors if name not in row])):
                options = [value for value in factors[name] if fits({**row, name: value})]
                noise = draw.random(len(options)).tolist()
                gains = [(beside[name, v] & held).bit_count() + n / 2 for v, n in zip(options, noise, strict=True)]
                row[name] = options[gains.index(max(gains))]
                held |= bits[name, row[name]]
            if (gained := sum((beside[each] & held).bit_count() for each in row.items()) // 2) > most:
                best, most = row, gained
        rows.append(best)
        own = best.items()
        left = [pair for pair in left if not (pair[0] in own and pair[1] in own)]
    return rows
