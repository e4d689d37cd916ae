"""Rows that cover every pair of values of some factors: far fewer than their product, and every two features meet."""

from __future__ import annotations

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
    """Rows such that every feasible pair of values occurs in one; greedy and deterministic."""
    pairs = {frozenset(pair) for pair in feasible_pairs(factors, fits)}
    ordered = sorted(pairs, key=lambda pair: sorted(map(repr, pair)))
    draw, rows = np.random.default_rng(seed), []
    while ordered:
        best: Row = {}
        gained: set[frozenset[Any]] = set()
        with_value: dict[tuple[str, Any], set[tuple[str, Any]]] = {}
        for a, b in ordered:
            with_value.setdefault(a, set()).add(b)
            with_value.setdefault(b, set()).add(a)
        for _ in range(60):
            row = dict(sorted(ordered[int(draw.integers(len(ordered)))]))
            for name in draw.permutation([name for name in factors if name not in row]):
                options = [value for value in factors[name] if fits({**row, name: value})]
                hits = [len(with_value.get((name, value), set()) & row.items()) for value in options]
                row[name] = options[int(np.argmax(hits + draw.random(len(options)) / 2))]
            covered = {frozenset(two) for two in itertools.combinations(row.items(), 2)} & pairs
            if len(covered) > len(gained):
                best, gained = row, covered
        rows.append(best)
        pairs -= gained
        ordered = [pair for pair in ordered if pair in pairs]
    return rows
