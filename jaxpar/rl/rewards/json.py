"""Rewards of answers that are JSON, with the two terms of ThinkJSON (arXiv:2502.14905).

The JSON of an answer is the text between its `<answer>` and `</answer>` where it has them, else all of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.reading.text_file import read_text_file
from jaxpar.config.spelling import cut, quoted

NO_JSON = object()
"""Stands for a text that is no JSON."""
DEEPEST = 100
"""Objects and lists around a value of an answer's JSON, at most: functions call themselves for each."""
LARGEST_SCHEMA = 2**24
"""Bytes of the largest file of a schema."""
_INSIDE = r"(?:(?!</?(?:think|answer)>).)*"
_ANSWER = re.compile(rf"<answer>({_INSIDE})</answer>", re.DOTALL)
_STRICT = re.compile(rf"\s*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*", re.DOTALL)


def json_fields(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[object], **_: object
) -> list[float]:
    """The share of the fields of `answer`, at any depth, that the JSON has with the same value."""
    return [_share(parsed(text), wanted) for text, wanted in zip(completions, answer, strict=True)]


def json_length(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[object], **_: object
) -> list[float]:
    """The length of the JSON or of `answer`, whichever is shorter, over the other, without spaces; 0 without JSON."""
    return [_alike(parsed(text), wanted) for text, wanted in zip(completions, answer, strict=True)]


def is_json(prompts: Sequence[str], completions: Sequence[str], **_: object) -> list[float]:
    """1 for JSON, else 0."""
    return [float(parsed(text) is not NO_JSON) for text in completions]


def think(prompts: Sequence[str], completions: Sequence[str], **_: object) -> list[float]:
    """1 for `<think>...</think><answer>...</answer>`, each tag once and nothing but spaces around them, else 0."""
    return [float(_STRICT.fullmatch(text) is not None) for text in completions]


def schema(prompts: Sequence[str], completions: Sequence[str], schema: Sequence[object], **_: object) -> list[float]:
    """1 where the JSON fits the JSON Schema of the column `schema`, else 0."""
    checks = [_validator(json.dumps(one, allow_nan=True), "the column schema") for one in schema]
    return [float(check(parsed(text))) for check, text in zip(checks, completions, strict=True)]


def is_schema_file(name: str) -> bool:
    """Whether the name of a reward is that of a file with a JSON Schema."""
    return name.endswith(".json")


def schema_reward(path: str) -> Callable[..., list[float]]:
    """The reward of `rl.rewards: {FILE.json: ...}`: 1 where the JSON fits the schema of the file, else 0.

    Raises `UserError` where there is no such file, it is no JSON Schema, or the package jsonschema is not installed.
    """
    where = f"rl.rewards: {quoted(path)}"
    file = user_path(path, where)
    if not Path(file).is_file():
        raise UserError(f"{where}: there is no file {quoted(str(file))}; expected a JSON Schema")
    check = _validator(read_text_file(file, LARGEST_SCHEMA, where), where)

    def reward(prompts: Sequence[str], completions: Sequence[str], **_: object) -> list[float]:
        return [float(check(parsed(text))) for text in completions]

    return reward


def parsed(text: str) -> object:
    """The JSON of an answer, or `NO_JSON`: constants that JSON has not, a key that comes twice, and more than `DEEPEST`
    objects and lists around a value are none."""
    inside = _ANSWER.search(text)
    try:
        value = json.loads(inside[1] if inside else text, parse_constant=_refused, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return NO_JSON
    return NO_JSON if _is_deep(value) else value


def equal_json(one: object, other: object) -> bool:
    """Whether two values are the same JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal_json, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _share(value: object, wanted: object) -> float:
    if value is NO_JSON:
        return 0.0
    fields, others = dict(_fields(wanted)), dict(_fields(value))
    return sum(key in others and equal_json(others[key], one) for key, one in fields.items()) / len(fields)


def _fields(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], object]]:
    """The values that hold no others, each with its keys; an empty object or list is one."""
    members = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, member in members for one in _fields(member, (*path, key))] or [(path, value)]


def _alike(value: object, wanted: object) -> float:
    if value is NO_JSON:
        return 0.0
    shorter, longer = sorted(len(json.dumps(one, separators=(",", ":"), allow_nan=True)) for one in (value, wanted))
    return shorter / longer


def _is_deep(value: object) -> bool:
    """Whether more than `DEEPEST` objects and lists are around a value."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not inside:
            return False
        level = [each for one in inside for each in one]
    return True


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice")
    return made


@lru_cache(maxsize=256)
def _validator(text: str, where: str) -> Callable[[object], bool]:
    """The check of a schema, from its text. References lead to its parts alone: nothing is fetched."""
    try:
        from jsonschema.exceptions import SchemaError
        from referencing import Registry
    except ImportError:
        raise UserError(f"{where}: JSON Schemas need the package jsonschema; pip install 'jaxpar[schema]'") from None
    try:
        written = _written(text, where)
        kind = _kind(written, where)
        kind.check_schema(written, format_checker=kind.FORMAT_CHECKER)
        _check_references(written, kind, where)
        validator = kind(written, registry=Registry())
        validator.is_valid(None)
    except SchemaError as error:
        at = "".join(f"/{key}" for key in error.path) or "/"
        raise UserError(f"{where}: it is no JSON Schema, at {at}: {cut(error.message)}") from None
    except RecursionError:
        raise UserError(
            f"{where}: it is nested too deeply, or refers to itself without end; expected a JSON Schema that ends"
        ) from None

    def fits(value: object) -> bool:
        try:
            return value is not NO_JSON and validator.is_valid(value)
        except RecursionError:
            return False  # a part that refers to itself, at a value that a schema alone does not tell

    return fits


def _written(text: str, where: str) -> dict[str, object] | bool:
    try:
        written = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: it is not JSON ({error}); expected a JSON Schema") from None
    if not isinstance(written, dict | bool):
        raise UserError(f"{where}: it is no JSON Schema: got {quoted(written, 60)}; expected an object, true or false")
    return written


def _kind(written: dict[str, object] | bool, where: str) -> Any:
    """The validators of the version of JSON Schema that a schema is written in."""
    from jsonschema.validators import validator_for

    if isinstance(written, bool) or "$schema" not in written:
        return validator_for(True)
    version = written["$schema"]
    kind = validator_for(written, default=None) if isinstance(version, str) else None  # pyright: ignore[reportArgumentType]
    if kind is None:
        raise UserError(
            f"{where}: $schema: got {quoted(version, 60)}; expected a version of JSON Schema, as "
            "'https://json-schema.org/draft/2020-12/schema'"
        )
    return kind


def _check_references(written: dict[str, object] | bool, kind: Any, where: str) -> None:
    """Raise `UserError` for a reference of a schema, or of what it refers to, that leads to no schema."""
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import specification_with

    specification = specification_with(kind.ID_OF(kind.META_SCHEMA))
    root = specification.create_resource(written)
    left, done = [(written, REGISTRY.resolver_with_root(root))], set[int]()
    while left:
        part, resolver = left.pop()
        if not isinstance(part, dict) or id(part) in done:
            continue
        done.add(id(part))
        left += [_followed(part[key], resolver, where) for key in ("$ref", "$dynamicRef") if key in part]
        for inner in specification.create_resource(part).subresources():
            left.append((inner.contents, resolver.in_subresource(inner)))


def _followed(reference: Any, resolver: Any, where: str) -> tuple[object, Any]:
    """The part of a schema that a reference leads to, with what resolves references of the part."""
    from referencing.exceptions import Unresolvable

    try:
        resolved = resolver.lookup(reference)
    except (Unresolvable, ValueError, TypeError):  # the latter of pointers into numbers and texts
        resolved = None
    if resolved is None or not isinstance(resolved.contents, dict | bool):
        raise UserError(f"{where}: $ref: {quoted(reference, 60)} leads to no schema; expected a part of this one")
    return resolved.contents, resolved.resolver
