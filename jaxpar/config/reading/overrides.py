"""Overrides from the command line: `section.key=value`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.reading.sections import (
    BY_MEMBER,
    Written,
    check_key,
    check_section,
    check_value,
    joined,
    preset_model,
    with_values,
)
from jaxpar.config.reading.unused import without_unused
from jaxpar.config.reading.yaml_text import parse_value
from jaxpar.config.schema import Config
from jaxpar.config.spelling import quoted

USED_BY_MODELS = ("parallel", "precision", "attention", "distributed")
"""Sections that matter to a model that is not trained; its own section it has already."""


def parse_overrides(overrides: Sequence[str]) -> Written:
    """The overrides as checked values by section and key; where one key is given twice the last wins.

    A value is read as YAML. For a key that holds text, a number or boolean is taken literally, because a shell
    removes quotes: `run.name=2024` names the run "2024".

    Raises:
        UserError: an override is not of the form, or its name or value is wrong.
    """
    written: Written = {}
    for override in overrides:
        section, key, value = _parse(override)
        written[section] = joined(section, written.get(section, {}), {key: value})
    return written


def check_used_by_models(overrides: Sequence[str]) -> None:
    """Refuse overrides of sections that do not matter to a model that is not trained, with a `UserError`."""
    for override in overrides:
        if override.split(".")[0] not in USED_BY_MODELS:
            raise UserError(
                f"--set {quoted(override)}: expected a key of {', '.join(USED_BY_MODELS)}; the model has the rest"
            )


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """The configuration with the overrides applied; `model.preset` sets the whole model before other keys of it are.

    Raises:
        UserError: an override is not of the form, or its name or value is wrong.
    """
    changed: dict[str, Any] = {}
    given = parse_overrides(overrides)
    for section, values in given.items():
        base = preset_model(values["preset"]) if "preset" in values else getattr(config, section)
        changed[section] = with_values(base, values)
    return without_unused(replace(config, **changed), given, config.optimizer)


def _parse(override: str) -> tuple[str, str, Any]:
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals:
        raise UserError(f"{quoted(override)}: an override is written section.key=value")
    if not dot:
        check_section(section)
        raise UserError(f"{quoted(override)}: an override is written section.key=value, and {section} is a section")
    value = parse_value(text)
    outer, _, inner = key.partition(".")
    if inner and f"{section}.{outer}" in BY_MEMBER:
        return section, outer, check_value(section, outer, {inner: value})
    annotation = check_key(section, key)
    if annotation in (str, str | None) and isinstance(value, (bool, int, float)):
        value = text.strip()
    return section, key, check_value(section, key, value)
