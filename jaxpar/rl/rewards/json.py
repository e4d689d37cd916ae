"""Rewards of answers that are JSON, with the two terms of ThinkJSON (arXiv:2502.14905).

The JSON of an answer is the text between its `<answer>` and `</answer>` where it has them, else all of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jaxpar.config.errors import UserError
from jaxpar.config.paths import user_path
from jaxpar.config.reading.text_file import read_text_file
from jaxpar.config.spelling import quoted

NO_JSON = object()
"""Stands for a text that is no JSON."""
LARGEST_SCHEMA = 2**24
"""Bytes of the largest file of a schema."""
_INSIDE = r"(?:(?!</?(?:think|answer)>).)*"
_ANSWER = re.compile(rf"<answer>({_INSIDE})</answer>", re.DOTALL)
_STRICT = re.compile(rf"\s*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*", re.DOTALL)


def json_fields(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **_: object) -> list[float]:
    """The share of the fields of `answer`, at any depth, that the JSON has with the same value."""
    return [_share(parsed(text), wanted) for text, wanted in zip(completions, answer, strict=True)]


def json_length(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **_: object) -> list[float]:
    """The length of the JSON or of `answer`, whichever is shorter, over the other, without spaces; 0 without JSON."""
    return [_alike(parsed(text), wanted) for text, wanted in zip(completions, answer, strict=True)]


def is_json(prompts: Sequence[str], completions: Sequence[str], **_: object) -> list[float]:
    """1 for JSON, else 0."""
    return [float(parsed(text) is not NO_JSON) for text in completions]


def think(prompts: Sequence[str], completions: Sequence[str], **_: object) -> list[float]:
    """1 for `<think>...</think><answer>...</answer>`, each tag once and nothing but spaces around them, else 0."""
    return [float(_STRICT.fullmatch(text) is not None) for text in completions]


def schema(prompts: Sequence[str], completions: Sequence[str], schema: Sequence[Any], **_: object) -> list[float]:
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


def parsed(text: str) -> Any:
    """The JSON of an answer, or `NO_JSON`: constants that JSON has not, and a key that comes twice, are none."""
    inside = _ANSWER.search(text)
    try:
        return json.loads(inside[1] if inside else text, parse_constant=_refused, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return NO_JSON


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _share(value: Any, wanted: Any) -> float:
    if value is NO_JSON:
        return 0.0
    fields, others = dict(_fields(wanted)), dict(_fields(value))
    return sum(key in others and same_json(others[key], one) for key, one in fields.items()) / len(fields)


def _fields(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """The values that hold no others, each with its keys; an empty object or list is one."""
    members = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, member in members for one in _fields(member, (*path, key))] or [(path, value)]


def _alike(value: Any, wanted: Any) -> float:
    if value is NO_JSON:
        return 0.0
    shorter, longer = sorted(len(json.dumps(one, separators=(",", ":"), allow_nan=True)) for one in (value, wanted))
    return shorter / longer


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice")
    return made


@cache
def _validator(text: str, where: str) -> Callable[[Any], bool]:
    """The check of a schema, from its text. References lead to its parts alone: nothing is fetched."""
    try:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry
    except ImportError:
        raise UserError(f"{where}: JSON Schemas need the package jsonschema; pip install 'jaxpar[schema]'") from None
    try:
        written = json.loads(text)
        kind = validator_for(written)
        kind.check_schema(written)
    except ValueError as error:
        raise UserError(f"{where}: it is not JSON ({error}); expected a JSON Schema") from None
    except SchemaError as error:
        at = "".join(f"/{key}" for key in error.path) or "/"
        raise UserError(f"{where}: it is no JSON Schema, at {at}: {error.message}") from None
    validator = kind(written, registry=Registry())
    return lambda value: value is not NO_JSON and validator.is_valid(value)
