"""Results that are computed once, and no scans of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

ABSENT = object()
"""Marks a key without a result."""


class Memo(dict[Hashable, Any]):
    """Results by what they depend on."""

    def of[Result](self, key: Hashable, make: Callable[[], Result]) -> Result:
        """The result of a key, made on first use."""
        result = self.get(key, ABSENT)
        if result is ABSENT:
            result = self[key] = make()
        return result


@contextmanager
def no_collection() -> Iterator[None]:
    """No GC: scanning the objects of a search would take a tenth of its time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
