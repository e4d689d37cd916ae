"""A hundred kills (-9) in steps, evaluations, saves, starts and preparations: nothing is lost, and nothing is twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.runs import ROOT


def report_of(program: str, folder: Path, *, kills: int, seed: int) -> str:
    """What a program that kills prints at its end; it fails where a run or a folder is not what it should be."""
    done = subprocess.run(
        [sys.executable, "-m", program, str(folder), "--kills", str(kills), "--seed", str(seed)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("JAX_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
def test_forty_kills_of_training(tmp_path: Path, seed: int):
    """Exactness is checked by the program itself; here, that the kills fell where they should."""
    said = report_of("tests.training.killed", tmp_path, kills=40, seed=seed)
    hit = {place: int(number) for number, place in re.findall(r"^ *(\d+) ([a-z][a-z ]+)$", said, re.MULTILINE)}
    assert sum(hit.values()) == 40, said
    assert min(hit.get("in step", 0), hit.get("saving step", 0), hit.get("evaluating after step", 0)) >= 2, said
    [half_written, starts] = re.findall(r" (\d+) in the middle of a save.* (\d+) starts went on behind", said)[0]
    assert int(half_written) >= 5 and int(starts) >= 20, said


@pytest.mark.long
def test_thirty_kills_of_preparation(tmp_path: Path):
    said = report_of("tests.data.prepare.killed", tmp_path, kills=30, seed=4)
    [kills] = re.findall(r"^(\d+) kills, \d+ folders finished, all alike$", said, re.MULTILINE)
    assert int(kills) >= 30
