"""The pieces of HLO text: nested lists, `key=value` attributes, shapes."""

from __future__ import annotations

import re
from functools import lru_cache

from jaxpar.compiler.program.hlo.records import ArrayShape, ProgramError, Shape

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[({\[]|[)}\]]|,')
_KEY = re.compile(r"([A-Za-z][\w-]*)=")
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_WITHOUT_DIGITS = {"token": 0, "opaque": 0}
_COMMENT = re.compile(r"/\*index=\d+\*/")


def without_comments(text: str) -> str:
    """The text without the counters that XLA writes into long lists."""
    return _COMMENT.sub("", text) if "/*" in text else text


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`; brackets inside strings do not count."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        first = token[0][0]
        if first in "({[":
            depth += 1
        elif first in ")}]":
            depth -= 1
            if depth == 0:
                return token.start()
    raise ProgramError("a bracket is not closed", text[start:])


def split(text: str) -> list[str]:
    """Parts of a list separated by commas outside brackets and strings, without the spaces around them."""
    parts, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "({[":
            depth += 1
        elif first in ")}]":
            depth -= 1
        elif first == "," and depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def attributes(text: str) -> dict[str, str]:
    """`a=b, c={d, e}` as a dict of texts. Raises `ProgramError` for a part that is no `key=value`."""
    values: dict[str, str] = {}
    for part in split(text):
        match = _KEY.match(part)
        if match is None:
            raise ProgramError("not an attribute", part)
        if match[1] == "device_ids" and values:  # belongs to the mesh before it: `mesh['a'=2], device_ids=(1,0) {'a'}`
            values[next(reversed(values))] += f", {part}"
            continue
        values[match[1]] = part[match.end() :]
    return values


@lru_cache(maxsize=65536)
def shape_of(text: str) -> Shape:
    """A shape from its text, such as `bf16[2,3]{1,0:S(5)}` or a tuple of such."""
    if text.startswith("("):
        if closing(text, 0) != len(text) - 1:
            raise ProgramError("not a shape", text)
        return tuple(shape_of(part) for part in split(text[1:-1]))
    match = _ARRAY.fullmatch(text)
    if match is None:
        raise ProgramError("not a shape", text)
    dtype, dims, layout = match.groups()
    space = _SPACE.search(layout or "")
    return ArrayShape(dtype, _numbers(dims), int(space[1]) if space else 0, _bits(dtype))


def _bits(dtype: str) -> int:
    """Bits of an element: those that a name begins its digits with, as `f6e2m3fn` has 6; else a byte, as `pred`."""
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else _WITHOUT_DIGITS.get(dtype, 8)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


def shape_end(text: str, start: int) -> int:
    """Index after the shape that begins at `start`."""
    if text[start] == "(":
        return closing(text, start) + 1
    match = _ARRAY.match(text, start)
    if match is None:
        raise ProgramError("not a shape", text[start : start + 60])
    return match.end()
