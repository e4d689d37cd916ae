"""Checks of single keys: type, choice and range, and settings that would have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxpar.config.bounds import BOUNDS
from jaxpar.config.errors import UserError
from jaxpar.config.reading.sections import check_value, config_to_dict
from jaxpar.config.reading.unused import unused_settings
from jaxpar.config.schema import Config


def check_values(config: Config) -> None:
    """Types and choices again, because a configuration may be built in Python; then the range of each number."""
    for section, values in config_to_dict(config).items():
        for key, value in values.items():
            check_value(section, key, value)
            _check_range(f"{section}.{key}", value, f"{section}.{key}")


def _check_range(key: str, value: Any, bound_key: str) -> None:
    """Check a number, or every number of a mapping; what a kind of layers sets has the range of the model's key."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            _check_range(f"{key}.{name}", entry, "model" if key == "model.kinds" else f"{bound_key}.{name}")
        return
    bound = BOUNDS.get(bound_key)
    refusal = bound.refusal(value) if bound is not None and type(value) in (int, float) else None
    if refusal is not None:
        raise UserError(f"{key}: {refusal}, got {value}")


def check_unused(config: Config) -> None:
    """Check that each setting that differs from its default has an effect under the others.

    Raises:
        UserError: names the first that has none, and the setting that leaves it unused.
    """
    for unused in unused_settings(config):
        raise UserError(str(unused))
