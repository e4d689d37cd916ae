"""A fresh clone needs one command, and nothing but a Python somewhere on the machine."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from tests.setup.programs import ROOT


def make_train(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`make train` in the shell of a user: without what `make test` and its environment set."""
    ours = ("MAKE", "MFLAGS", "JAX_", "XLA_", "TF_", "PYTEST_", "VIRTUAL_ENV", "CONFIG", "ARGS", "JOBS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        ["make", "train", *arguments], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )


STEPS = 10
"""`make train` takes 100: these are enough to see that it trains, evaluates and ends."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "whole", [pytest.param(False, marks=pytest.mark.long(always=True)), pytest.param(True, marks=pytest.mark.release)]
)
def test_make_train_sets_up_a_fresh_clone_and_learns_real_text(tmp_path: Path, whole: bool):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    first = make_train(clone, *([] if whole else [f"ARGS=--set run.steps={STEPS}"]))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Installing jaxpar" in first.stdout
    assert first.stderr == "", "no warnings and no noise of plugins"
    assert "warning" not in first.stdout.lower() and "Continued by the model" in first.stdout
    summary = json.loads((clone / "runs/quickstart/summary.json").read_text())
    if whole:
        assert summary["baseline_loss"] - summary["eval_loss"] >= 0.15
    else:
        assert summary["steps"] == STEPS and summary["eval_loss"] < math.log(256)

    second = make_train(clone, "CONFIG=configs/missing.yaml")
    assert "Installing" not in second.stdout
    assert "configs/missing.yaml" in second.stderr, "the trainer ran and refused the file"
