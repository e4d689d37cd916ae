"""Parts that a message of an error must name, without its wording: what tests of refusals share."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from jaxpar.config.errors import UserError


@contextmanager
def refused(
    *parts: str, error: type[Exception] = UserError, grid: bool = False
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The block raises `error` with a message of one printable line that contains each of `parts` literally.

    `parts` are what a user needs from the message: the key, the value, what was expected or what comes near it. With
    `grid`, that line has more lines below it: the table of a pipeline schedule, in which the place is marked.
    """
    __tracebackhide__ = True
    assert parts and all(parts), "name the key, the value and what was expected"
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    printed, _, below = message.partition("\n") if grid else (message, "", "")
    assert bool(below) == grid, f"no grid below: {printed}"
    assert printed.isprintable(), f"more than one printable line: {printed!r}"
    missing = [part for part in parts if part not in printed]
    assert not missing, f"{missing} not in: {printed}"


def refusals(table: str, **shared: str) -> pytest.MarkDecorator:
    """A table of refusals, each a case with `overrides` and `parts`, as in
    `model.layers=3 | parallel.pipe=2 => model.layers: 3 | a multiple of 2`.

    Left of the arrow stand overrides of a configuration, or the name of some that are `shared`, and right of it what
    the refusal must name: the key, the value and the hint. A line that is indented by more than the first continues
    the one before it.
    """
    cases = []
    for row in _rows(table):
        asked, parts = row.split("=> ")
        overrides = _overrides(asked, shared)
        cases.append(pytest.param(overrides, tuple(part.strip() for part in parts.split(" | ")), id=asked.strip()))
    return pytest.mark.parametrize(("overrides", "parts"), cases)


def named(table: str, **shared: str) -> dict[str, list[str]]:
    """Overrides of configurations by name, one a line, as in `two ranks: parallel.fsdp=2 | parallel.zero=3`."""
    return {name: _overrides(asked, shared) for name, asked in (row.split(": ", 1) for row in _rows(table))}


def _overrides(text: str, shared: dict[str, str]) -> list[str]:
    asked = [cell.strip() for cell in text.split(" | ")]
    return [one for cell in asked for one in shared.get(cell, cell).split(" | ")]


def _rows(table: str) -> Iterator[str]:
    """Lines of a table, each with those that are indented by more than the first and continue it."""
    lines = inspect.cleandoc(table).splitlines()
    starts = [at for at, line in enumerate(lines) if line and not line.startswith(" ")]
    for first, end in pairwise([*starts, len(lines)]):
        yield " ".join(line.strip() for line in lines[first:end]).strip()


def refused_by_command(status: int, out: str, errors: str, *parts: str) -> str:
    """The sentence with which a command refused: status 2, nothing on stdout, one line on stderr that has `parts`.

    With pytest's capture: `refused_by_command(main(arguments), *capfd.readouterr(), "--steps", "got 5")`.
    """
    __tracebackhide__ = True
    assert (status, out) == (2, ""), errors
    sentence, *more = errors.splitlines()
    assert not more, f"more than one line: {errors}"
    assert sentence.startswith("jaxpar: ") and sentence.isprintable(), f"no printable line of jaxpar: {sentence!r}"
    missing = [part for part in parts if part not in sentence]
    assert not missing, f"{missing} not in: {sentence}"
    return sentence
