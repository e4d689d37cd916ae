"""Kernels under the newest jax that pyproject.toml allows; all other tests run with that of constraints.txt.

Its four wheels are laid in front of the packages of these tests: 850 MB, which pip downloads each time.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.gpu_compile import in_child

ROOT = Path(__file__).parents[2]
WHEELS = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt")
SPILLED = {"attention by mosaic, width 256, soft-cap": 8}
"""Bytes of kernels that spill under it, as docs/install.md states; under the tested one none does."""
PRIVATE = ("tests/pallas_kernels/attention/test_cudnn_packed.py", "tests/pallas_kernels/test_vjp_parts.py")
"""Tests of what is called inside of jax."""


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[Path]:
    """The folder with its wheels, which pytest would keep."""
    needed = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    (allowed,) = (one.specifier for one in needed if one.name == "jax")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
    run([*pip, str(tmp_path), *(f"{wheel}{allowed}" for wheel in WHEELS)])
    yield tmp_path
    shutil.rmtree(tmp_path)


def run(command: list[str], **environment: str) -> None:
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kernels_compile_and_spill_what_the_page_states(newest: Path) -> None:
    spilled = {}
    for blackwell in (False, True):
        spilled |= in_child("tests.pallas_kernels.gpu_spills:spills", blackwell, path=newest)
    assert spilled == dict.fromkeys(spilled, 0) | SPILLED
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PRIVATE], PYTHONPATH=str(newest))
