"""Checks of single keys: type, choice and range, and settings that would have no effect."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.reading.sections import check_value, config_to_dict
from jaxpar.config.reading.unused import unused_settings
from jaxpar.config.schema import Config


def check_values(config: Config) -> None:
    """Types, choices and ranges again, because a configuration may be built in Python."""
    for section, values in config_to_dict(config).items():
        for key, value in values.items():
            check_value(section, key, value)


def check_unused(config: Config) -> None:
    """Check that each setting that differs from its default has an effect under the others.

    Raises:
        UserError: names the first that has none, and the setting that leaves it unused.
    """
    for unused in unused_settings(config):
        raise UserError(str(unused))
