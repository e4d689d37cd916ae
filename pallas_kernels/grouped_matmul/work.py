"""The expected number of rows of a product, stored in the name of the scope in which it runs.

The sizes of groups are data: a compiled program has only the room for rows, and loops as often as they need. Whoever
counts the work of a program reads the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from math import ceil

import jax

_SCOPE = re.compile(r"grouped_matmul\.rows(\d+)")
_BLOCKS = re.compile(r"grouped_matmul\.block(\d+)")


def expecting(rows: int) -> AbstractContextManager[object]:
    """A scope for products that expect `rows` rows."""
    return jax.named_scope(f"grouped_matmul.rows{rows}")


def expected_rows(scope: str) -> int | None:
    """The rows that the name of a scope states; None for another scope."""
    match = _SCOPE.fullmatch(scope)
    return None if match is None else int(match[1])


def in_blocks(rows: int) -> AbstractContextManager[object]:
    """A scope for a loop over blocks of `rows` rows."""
    return jax.named_scope(f"grouped_matmul.block{rows}")


def expected_blocks(scopes: Iterable[str]) -> int | None:
    """The expected iterations of such a loop if every block is full; None for another loop, judged by its scopes."""
    matches = [match for scope in scopes if (match := _SCOPE.fullmatch(scope) or _BLOCKS.fullmatch(scope))]
    rows = [int(one[1]) for one in matches if one.re is _SCOPE]
    block = [int(one[1]) for one in matches if one.re is _BLOCKS]
    return ceil(rows[-1] / block[-1]) if rows and block else None
