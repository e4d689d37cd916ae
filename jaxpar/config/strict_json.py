"""JSON that every reader takes: null for numbers that are not finite, for which JSON has no spelling."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def strict_json(values: Mapping[str, object]) -> dict[str, object]:
    """`values` with null for floats that are not finite, at any depth: JSON has none, and strict readers refuse NaN."""
    return {key: _strict(value) for key, value in values.items()}


def json_text(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Strict JSON of a value, as commands print and write it."""
    return json.dumps(_strict(value), indent=indent, sort_keys=sort_keys, allow_nan=False)


def _strict(value: object) -> object:
    if isinstance(value, Mapping):
        return strict_json(value)
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
