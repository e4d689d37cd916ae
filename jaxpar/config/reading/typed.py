"""Values checked against dataclass annotations, without coercion; used to read both configurations and plans.

Annotations may be `int`, `float`, `bool`, `str`, `Literal[...]`, `Annotated[str, registry]` (a name in a mapping),
`Annotated[int, Bound]` (a number in a range, also `float`), `X | None`, `dict[str, X]`, `Annotated[dict[str, object],
MembersOf]`, `tuple[X, ...]` (written as a list), a dataclass, also a generic one, or `object` for anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxpar.config.bounds import Bound
from jaxpar.config.errors import UserError
from jaxpar.config.parts import MembersOf
from jaxpar.config.reading.aliases import MOVED, REMOVED
from jaxpar.config.spelling import cut, did_you_mean, join_or, printable

type Annotation = Any
"""The type of a field as `typing` resolves it: a class, a union, a `Literal`, an `Annotated`, ..."""

LARGEST = 2**63
"""Whole numbers must be below it, and above its negative."""

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}


@cache
def field_types(record: type) -> dict[str, Annotation]:
    """The annotation of each field of a dataclass, resolved, in the order of declaration."""
    plain = get_origin(record) or record
    names = [parameter.__name__ for parameter in plain.__type_params__]
    hints = get_type_hints(plain, localns=dict(zip(names, get_args(record), strict=True)), include_extras=True)
    return {field.name: hints[field.name] for field in fields(plain)}


def beside_type(annotation: Annotation) -> Any:
    """The annotation beside a type in `Annotated`: a registry of names, a `Bound` or a `MembersOf`; None without it."""
    return get_args(annotation)[1] if get_origin(annotation) is Annotated else None


def plain_type(annotation: Annotation) -> Annotation:
    """A type without the `Bound` or `MembersOf` beside it; other annotations, names in a registry too, as they are."""
    return get_args(annotation)[0] if isinstance(beside_type(annotation), Bound | MembersOf) else annotation


def bound_of(annotation: Annotation) -> Bound | None:
    """The range of a number, or of the number among several alternatives; None without one."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((bound for member in members if isinstance(bound := beside_type(member), Bound)), None)


def _is_record(annotation: Annotation) -> bool:
    """Whether it is a dataclass, or a generic one with its parameters."""
    return is_dataclass(get_origin(annotation) or annotation)


def type_name(annotation: Annotation) -> str:
    """An annotation in words, for errors and the reference: `a whole number or null`, `rmsnorm or layernorm`."""
    return join_or(type_names(annotation))


def type_names(annotation: Annotation) -> list[str]:
    """The alternatives that `type_name` joins."""
    annotation = plain_type(annotation)
    origin = get_origin(annotation)
    if origin in (Literal, Annotated):
        return [spell(choice) for choice in _choices(annotation)]
    if origin in (Union, UnionType):
        return [name for member in get_args(annotation) for name in type_names(member)]
    if origin is dict or _is_record(annotation):
        return ["a mapping"]
    if origin is tuple:
        return ["a list"]
    return [_NAMES[annotation]]


def spell(value: object) -> str:
    """A value in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{spell(name)}: {spell(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(spell, value)) + "]"
    return str(value)


def checked(key: str, value: object, annotation: Annotation) -> Any:
    """The value if it is of the annotated type; an int where a float is expected becomes one. Nothing else is changed.

    Raises:
        UserError: the value is of another type, not among the choices, out of range, or not finite.
    """
    if type(value) is int and abs(value) >= LARGEST:
        raise UserError(f"{key}: expected a number of at most 64 bits, got {shown(value)}")
    origin = get_origin(plain_type(annotation))
    if origin in (Union, UnionType):
        if fitting := [member for member in get_args(annotation) if _fits(value, member)]:
            return checked(key, value, fitting[0])
    elif origin is dict and isinstance(value, Mapping):
        if strange := [name for name in value if not isinstance(name, str)]:
            raise UserError(f"{key}: expected names of its entries that are text, got {shown(strange[0])}")
        kind = get_args(plain_type(annotation))[1]
        return {name: checked(f"{key}.{cut(name)}", entry, kind) for name, entry in value.items()}
    elif origin is tuple and isinstance(value, (list, tuple)):
        kind = get_args(annotation)[0]
        return tuple(checked(f"{key}[{index}]", entry, kind) for index, entry in enumerate(value))
    elif _is_record(annotation) and isinstance(value, Mapping):
        return record_from_plain(annotation, value, key)
    elif _fits(value, annotation):
        converted: Any = float(value) if plain_type(annotation) is float else value  # pyright: ignore[reportArgumentType]
        bound = bound_of(annotation)
        if bound is not None and (refusal := bound.refusal(converted)):
            raise UserError(f"{key}: {refusal}, got {converted}")
        return converted
    raise UserError(f"{key}: expected {type_name(annotation)}, got {shown(value)}{_near_miss(value, annotation)}")


def record_from_plain[T](record: type[T], plain: object, key: str) -> T:
    """A dataclass from nested plain mappings: every field without a default must be given, and no unknown key may be.

    Raises:
        UserError: a key is unknown or missing, or a value is of the wrong type or out of range.
    """
    values = checked_members(record, plain, key)
    for field in fields(get_origin(record) or record):  # pyright: ignore[reportArgumentType]
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{key}: the key {field.name} is missing")
    for name, annotation in field_types(record).items():
        if name in values and isinstance(beside := beside_type(annotation), MembersOf):
            members = beside.record(values)
            if members is not None:
                record_from_plain(members, values[name], f"{key}.{name}")
    return record(**values)


def checked_members(record: type, plain: object, key: str) -> dict[str, Any]:
    """The values of some fields of a dataclass, checked.

    Raises:
        UserError: a key is unknown, or a value is of the wrong type or out of range.
    """
    if not isinstance(plain, Mapping):
        raise UserError(f"{key}: expected a mapping, got {shown(plain)}")
    known = field_types(record)
    for name in plain:
        if name not in known:
            if gone := REMOVED.get(f"{key}.{name}"):
                raise UserError(f"{key}.{name}: no such key any more: {gone}")
            moved = MOVED.get(f"{key.rpartition('.')[2]}.{name}")
            near = f"; it is {moved} now" if moved else did_you_mean(name, known)
            raise UserError(f"{key}: unknown key {shown(name)}{near}")
    return {name: checked(f"{key}.{name}", value, known[name]) for name, value in plain.items()}


def _choices(annotation: Annotation) -> list[Any]:
    """Values that a `Literal` or a registry allows; none for other annotations."""
    annotation = plain_type(annotation)
    match get_origin(annotation), get_args(annotation):
        case origin, choices if origin is Literal:
            return list(choices)
        case origin, (_, registry) if origin is Annotated:
            return list(registry)
    return []


def _fits(value: object, annotation: Annotation) -> bool:
    annotation = plain_type(annotation)
    if get_origin(annotation) in (Literal, Annotated):  # 1 == True, so equality alone would let booleans through
        return any(type(value) is type(choice) and value == choice for choice in _choices(annotation))
    if annotation is object:
        return True
    if annotation is float:
        return type(value) in (int, float) and math.isfinite(value)  # pyright: ignore[reportArgumentType]
    if get_origin(annotation) is dict or _is_record(annotation):
        return isinstance(value, Mapping)
    if get_origin(annotation) is tuple:
        return isinstance(value, (list, tuple))
    return type(value) is annotation


def _near_miss(value: object, annotation: Annotation) -> str:
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if value is None and get_origin(plain_type(annotation)) is dict:
        return "; did you mean {}?"
    if isinstance(value, list):
        firsts = [next(iter(field_types(member).items())) for member in members if _is_record(member)]
        near = [name for name, first in firsts if _fits(value, first)]
        return f"; did you mean {printable(cut(spell({near[0]: value}), 80))}?" if near else ""
    if not isinstance(value, str):
        return ""
    words = [spell(choice) for member in members for choice in _choices(member)]
    if value.lower() == "none" and NoneType in members and "none" not in words:
        return "; did you mean null?"
    return did_you_mean(value, words)


def shown(value: object) -> str:
    """A value for a message: as YAML, shortened if it is long."""
    try:
        text = repr(value) if isinstance(value, str | Mapping) else spell(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        text = "a number of thousands of digits"
    return printable(text if len(text) <= 80 else text[:77] + "...")
