"""A fresh clone needs one command, and nothing but a Python somewhere on the machine."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.setup.programs import ROOT


def make_train(clone: Path, config: str) -> subprocess.CompletedProcess[str]:
    """`make train` in the shell of a user: without what `make test` and its environment set."""
    ours = ("MAKE", "MFLAGS", "JAX_", "XLA_", "TF_", "PYTEST_", "VIRTUAL_ENV", "CONFIG", "ARGS", "JOBS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = ["make", "train", f"CONFIG={config}"]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_make_train_sets_up_a_fresh_clone_and_starts_training(tmp_path: Path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    first = make_train(clone, "configs/missing.yaml")
    assert "Installing jaxpar" in first.stdout
    assert "configs/missing.yaml" in first.stderr, "the trainer ran and refused the file"
    assert "warning" not in (first.stdout + first.stderr).lower()

    start = time.monotonic()
    second = make_train(clone, "configs/missing.yaml")
    assert "Installing" not in second.stdout
    assert "configs/missing.yaml" in second.stderr
    assert time.monotonic() - start < 10
