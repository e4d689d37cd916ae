"""What a message of an error must name, without its wording: what tests of refusals share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


def refused_by_command(status: int, out: str, errors: str, *parts: str) -> str:
    """The sentence with which a command refused: status 2, nothing on stdout, one line on stderr that has `parts`.

    With pytest's capture: `refused_by_command(main(arguments), *capfd.readouterr(), "--steps", "got 5")`.
    """
    __tracebackhide__ = True
    assert (status, out) == (2, ""), errors
    [sentence] = errors.splitlines()
    assert sentence.startswith("jaxpar: ") and sentence.isprintable(), f"no printable line of jaxpar: {sentence!r}"
    missing = [part for part in parts if part not in sentence]
    assert not missing, f"{missing} not in: {sentence}"
    return sentence
