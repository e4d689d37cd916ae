"""Results that are computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any


class Memo(dict[Hashable, Any]):
    """Results by what they depend on."""

    def of[Result](self, key: Hashable, make: Callable[[], Result]) -> Result:
        """The result of a key, made on first use."""
        if key not in self:
            self[key] = make()
        return self[key]
