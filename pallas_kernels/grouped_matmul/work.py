"""How many rows a product is expected to have, stored in the name of the scope that it runs in.

The sizes of groups are data: a compiled program has only the room for rows. Whoever counts the work of a program reads
the name.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

import jax

_SCOPE = re.compile(r"grouped_matmul\.rows(\d+)")


def expecting(rows: int) -> AbstractContextManager[object]:
    """A scope for products of so many rows."""
    return jax.named_scope(f"grouped_matmul.rows{rows}")


def expected_rows(scope: str) -> int | None:
    """What the name of a scope states; None for another scope."""
    found = _SCOPE.fullmatch(scope)
    return None if found is None else int(found[1])
