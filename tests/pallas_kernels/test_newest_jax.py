"""Kernels under the newest jax that pyproject.toml allows; all other tests run with that of constraints.txt.

Its four wheels are laid in front of the packages of these tests: 850 MB, which pip downloads each time.
"""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.gpu_compile import in_child
from tests.setup.test_versions import constraints

ROOT = Path(__file__).parents[2]
WHEELS = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt")
STATED = "0.12.0.1"
SPILLED = {"attention by mosaic, width 256, soft-cap": 8}
"""Bytes of kernels that spill under the version that docs/install.md states; under the tested one none does."""
SECONDS = 840
"""The time of pip and all children: they end, and the wheels go, before pytest ends this process."""
PRIVATE = ("tests/pallas_kernels/attention/test_cudnn_packed.py", "tests/pallas_kernels/test_vjp_parts.py")
"""Tests of what is called inside of jax."""


def run(command: list[str], until: float, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False,
        timeout=until - monotonic(),
    )  # fmt: skip
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kernels_compile_and_spill_what_the_page_states() -> None:
    """Of another version than the page states, all that is asked is that kernels compile."""
    until, spilled = monotonic() + SECONDS, {}
    needed = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    (allowed,) = (one.specifier for one in needed if one.name == "jax")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    with TemporaryDirectory() as folder:  # pip's TMPDIR too, so that partial downloads go with it if pip is killed
        wheels = [f"{wheel}{allowed}" for wheel in WHEELS]
        run([*pip, "--no-deps", "--target", folder, *wheels], until, PIP_CONSTRAINT="", TMPDIR=folder)
        versions = [one.version for wheel in WHEELS for one in distributions(name=wheel, path=[folder])]
        assert len(versions) == len(WHEELS), f"{len(versions)} of {WHEELS} were installed"
        (version,) = set(versions)
        assert Version(version) > Version(constraints()["jax"]), f"jax {version} is not newer than the tested one"
        for blackwell in (False, True):
            left = until - monotonic()
            spilled |= in_child("tests.pallas_kernels.gpu_spills:spills", blackwell, path=Path(folder), timeout=left)
        print(f"bytes that kernels spill with jax {version}: {spilled}")
        assert not {name: error for name, error in spilled.items() if isinstance(error, str)}
        assert version != STATED or spilled == dict.fromkeys(spilled, 0) | SPILLED
        run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PRIVATE], until, PYTHONPATH=folder)
