"""An island that is killed (-9) and rejoins, again and again: no round is lost, and the other island continues."""

import re
from pathlib import Path

import pytest

from tests.training.damage.test_hundred_kills import report_of


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kills", "seed"), [pytest.param(4, 3, marks=pytest.mark.long), pytest.param(20, 1, marks=pytest.mark.release)]
)
def test_kills_of_an_island(tmp_path: Path, kills: int, seed: int):
    """The program itself checks the rounds and the outer states."""
    message = report_of("tests.training.island_jobs.killed", tmp_path, kills=kills, seed=seed)
    [(done, rounds)] = re.findall(r"^(\d+) kills, (\d+) rounds, none lost$", message, re.MULTILINE)
    assert int(done) == kills and int(rounds) > kills, message
