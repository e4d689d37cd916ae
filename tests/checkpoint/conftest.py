"""Checkpointers of a temporary folder, whose sentences for the user are collected."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxpar.checkpoint import Checkpointer


class Reports(list[str]):
    """The sentences that a checkpointer had for the user."""


MakeCheckpointer = Callable[..., Checkpointer]


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def checkpointer(tmp_path: Path, reports: Reports) -> Iterator[MakeCheckpointer]:
    """Makes checkpointers of the folder `checkpoints` under `tmp_path`, and closes them."""
    made: list[Checkpointer] = []

    def make(folder: Path = tmp_path / "checkpoints", keep_last: int = 10, keep_every: int | None = None):
        made.append(Checkpointer(folder, keep_last=keep_last, keep_every=keep_every, report=reports.append))
        return made[-1]

    yield make
    for one in made:
        one.close()
