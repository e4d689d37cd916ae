"""The mechanisms that a row states of its software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, get_args, get_type_hints

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import did_you_mean, one_of, quoted
from jaxpar.cost.mechanisms import BACKENDS, Mechanisms


def stated_mechanisms[Does: Mechanisms](does: Does, row: Mapping[str, str], place: str = "") -> Does:
    """`does`, changed by the columns `flash_attention` (0: all scores are in memory) and `mechanisms`.

    The latter may change any mechanism: `compiled=1;overlap_tensor=1`. Attention may also be an implementation of
    jaxpar's, as in `attention=cudnn`.

    Raises:
        UserError: the column names no mechanism, or a value that it cannot have.
    """
    if row["flash_attention"] == "0":
        does = replace(does, attention="scores")
    types, changes = _types(type(does)), dict[str, Any]()
    for part in filter(None, (part.strip() for part in (row.get("mechanisms") or "").split(";"))):
        name, _, value = part.partition("=")
        if name not in types:
            raise UserError(
                f"{place}: mechanisms: expected name=value with a name of Mechanisms, got "
                f"{quoted(part)}{did_you_mean(name, types)}"
            )
        legal = ("0", "1") if types[name] is bool else get_args(types[name])
        value = BACKENDS.get(value, value) if name == "attention" else value
        if value not in legal:
            raise UserError(f"{place}: mechanisms: {name}: expected {one_of(legal)}, got {quoted(value)}")
        changes[name] = value == "1" if types[name] is bool else value
    return replace(does, **changes)


@cache
def _types(mechanisms: type[Mechanisms]) -> dict[str, Any]:
    """The type of each mechanism by name."""
    return get_type_hints(mechanisms)
