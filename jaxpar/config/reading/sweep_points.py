"""Points of a sweep: overrides of which some have several values, as a grid or drawn at random."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from random import Random

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import quoted

type Point = Mapping[str, str]
"""A value, as it is written, for each key that varies."""

DRAWS = 1000
"""Draws in a row that were drawn before, at which a random sweep is refused."""
LONGEST = 120
"""Most letters of what a point adds to a run's name."""


def varied(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Overrides that all points share, and those with several values by key, in order.

    Values are separated by commas outside brackets and quotes: `optimizer.learning_rate=1e-3,3e-3`. A range
    `low..high` is one of several values for this purpose: it varies.

    Raises:
        UserError: a key varies twice, no key varies, or a value of several is empty.
    """
    shared, keys = list[str](), dict[str, list[str]]()
    for override in overrides:
        key, equals, text = override.partition("=")
        key, values = key.strip(), _values(text)
        if not equals or (len(values) == 1 and _range(values[0]) is None):
            shared.append(override)
        elif key in keys:
            raise UserError(f"--set {quoted(override)}: {key} varies twice; expected all of its values in one --set")
        elif not all(values) or len(set(values)) < len(values):
            raise UserError(f"--set {quoted(override)}: expected different values, none of them empty")
        else:
            keys[key] = values
    if not keys:
        raise UserError("--set: no key has several values, as in --set optimizer.learning_rate=1e-3,3e-3")
    return shared, keys


def grid(keys: Mapping[str, Sequence[str]]) -> list[Point]:
    """All combinations of values; the last key varies fastest.

    Raises:
        UserError: a value is a range.
    """
    for key, values in keys.items():
        if any(_range(value) for value in values):
            raise UserError(f"--set {key}={','.join(values)}: a range is for --random; a grid needs its values")
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]


def drawn(keys: Mapping[str, Sequence[str]], count: int, seed: int) -> list[Point]:
    """Different points, each value one of those listed, or from a range on a logarithmic scale.

    More points begin with those of fewer, so that a sweep can be continued by a larger number.

    Raises:
        UserError: there are fewer different points.
    """
    random = Random(seed)
    points, repeated = list[Point](), 0
    while len(points) < count:
        point = {key: _draw(random.choice(values), random) for key, values in keys.items()}
        repeated = repeated + 1 if point in points else 0
        if repeated == DRAWS:
            raise UserError(f"--random {count}: only {len(points)} different points were drawn; expected fewer")
        if not repeated:
            points.append(point)
    return points


def suffixes(points: Sequence[Point]) -> list[str]:
    """Suffix of the name of each point's run: the last parts of its keys, where they differ, and its values.

    Raises:
        UserError: one is too long, or two are the same.
    """
    last = [key.rpartition(".")[2] for key in points[0]]
    short = dict(zip(points[0], last if len(set(last)) == len(last) else points[0], strict=True))
    names = [_safe("-".join(f"{short[key]}={value}" for key, value in point.items())) for point in points]
    for index, name in enumerate(names):
        if len(name) > LONGEST:
            raise UserError(f"run.name: {quoted(name)} is longer than {LONGEST} letters; expected fewer keys that vary")
        if name in names[:index]:
            raise UserError(f"run.name: two points of the sweep are both named {quoted(name)}")
    return names


def _safe(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text, flags=re.ASCII)


def _values(text: str) -> list[str]:
    """Parts between commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        parts[-1] += letter
    return [part.strip() for part in parts]


def _range(value: str) -> tuple[float, float] | None:
    """The ends of `low..high`, if it is one.

    Raises:
        UserError: the ends are not numbers above 0, the first below the second.
    """
    low, dots, high = value.partition("..")
    if not dots:
        return None
    try:
        bounds = float(low), float(high)
    except ValueError:
        return None
    if not 0 < bounds[0] < bounds[1] < math.inf:
        raise UserError(f"--set: {quoted(value)}: a range is low..high with 0 < low < high, and drawn by logarithm")
    return bounds


def _draw(value: str, random: Random) -> str:
    bounds = _range(value)
    if bounds is None:
        return value
    drawn_value = math.exp(random.uniform(math.log(bounds[0]), math.log(bounds[1])))
    integral = all(re.fullmatch(r"\d+", bound.strip()) for bound in value.split(".."))
    return (
        str(round(drawn_value)) if integral else f"{min(max(float(f'{drawn_value:.6g}'), bounds[0]), bounds[1]):.10g}"
    )
