"""Kills (-9) in steps, evaluations, saves, starts and preparations: nothing is lost, and nothing is twice.

A dozen of training in CI, a hundred and more before a release.
"""

import re
from pathlib import Path

import pytest

from tests.processes import run_python


def report_of(program: str, folder: Path, *, kills: int, seed: int) -> str:
    """What a program that kills prints at its end; it fails where a run or a folder is not what it should be."""
    done = run_python("-m", program, folder, "--kills", kills, "--seed", seed, without=("JAX_",))
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        pytest.param(12, 3, marks=pytest.mark.long),
        *(pytest.param(40, seed, marks=pytest.mark.release) for seed in (1, 2)),
    ],
)
def test_kills_of_training(tmp_path: Path, kills: int, seed: int):
    """Exactness is checked by the program itself; here, that the kills fell where they should."""
    message = report_of("tests.training.damage.killed", tmp_path, kills=kills, seed=seed)
    hit = {place: int(number) for number, place in re.findall(r"^ *(\d+) ([a-z][a-z ]+)$", message, re.MULTILINE)}
    assert sum(hit.values()) == kills, message
    if kills < 40:
        return
    assert min(hit.get("in step", 0), hit.get("saving step", 0), hit.get("evaluating after step", 0)) >= 2, message
    [half_written, starts] = re.findall(r" (\d+) in the middle of a save.* (\d+) starts went on behind", message)[0]
    assert int(half_written) >= 5 and int(starts) >= 20, message


@pytest.mark.release
def test_kills_of_preparation(tmp_path: Path):
    message = report_of("tests.data.prepare.killed", tmp_path, kills=30, seed=4)
    [found] = re.findall(r"^(\d+) kills, \d+ folders finished, all alike$", message, re.MULTILINE)
    assert int(found) >= 30
