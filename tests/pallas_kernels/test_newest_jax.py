"""Kernels under the newest jax that pyproject.toml allows; all other tests run with that of constraints.txt.

Its four wheels are laid in front of the packages of these tests: 850 MB, which pip downloads each time.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import distributions
from pathlib import Path
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


@contextmanager
def newest(folder: Path, until: float) -> Iterator[Path]:
    """`folder` with its wheels, which pytest would keep, and pip with what it had loaded when it is ended."""
    needed = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    (allowed,) = (one.specifier for one in needed if one.name == "jax")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    wheels = [f"{wheel}{allowed}" for wheel in WHEELS]
    try:
        run([*pip, "--no-deps", "--target", str(folder), *wheels], until, PIP_CONSTRAINT="", TMPDIR=str(folder))
        yield folder
    finally:
        shutil.rmtree(folder)


def run(command: list[str], until: float, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False,
        timeout=until - monotonic(),
    )  # fmt: skip
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def version_in(folder: Path) -> str:
    """The one version of the wheels there, newer than the tested one."""
    versions = {wheel: [one.version for one in distributions(name=wheel, path=[str(folder)])] for wheel in WHEELS}
    (version,) = versions["jax"]
    assert all(one == [version] for one in versions.values()), f"wheels of several versions: {versions}"
    assert Version(version) > Version(constraints()["jax"]), f"jax {version} is not newer than the tested one"
    return version


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kernels_compile_and_spill_what_the_page_states(tmp_path: Path) -> None:
    """Of another version than the page states, all that is asked is that kernels compile."""
    until = monotonic() + SECONDS
    with newest(tmp_path, until) as folder:
        version, spilled = version_in(folder), {}
        for blackwell in (False, True):
            spilled |= in_child(
                "tests.pallas_kernels.gpu_spills:spills", blackwell, path=folder, timeout=until - monotonic()
            )
        print(f"bytes that kernels spill with jax {version}: {spilled}")
        assert not {name: error for name, error in spilled.items() if isinstance(error, str)}
        assert version != STATED or spilled == dict.fromkeys(spilled, 0) | SPILLED
        run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PRIVATE], until, PYTHONPATH=str(folder))


def test_wheels_are_removed_where_pip_or_a_kernel_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for fails in (True, False):
        folder = tmp_path / "wheels"
        folder.mkdir()
        monkeypatch.setattr(
            subprocess, "run", lambda *_, fails=fails, **__: subprocess.CompletedProcess([], fails, "", "")
        )
        with pytest.raises(AssertionError), newest(folder, monotonic()):
            raise AssertionError
        assert not folder.exists()


@pytest.mark.parametrize(
    ("versions", "good"),
    [
        (["0.12.0.1"] * 4, True),
        ([constraints()["jax"]] * 4, False),
        (["0.12.0.1", "0.12.0.1", "0.12.0.1", "0.12.0"], False),
        (["0.12.0.1"] * 3, False),
    ],
)
def test_wheels_of_one_version_that_is_newer_are_required(versions: list[str], good: bool, tmp_path: Path) -> None:
    for wheel, version in zip(WHEELS, versions, strict=False):
        metadata = tmp_path / f"{wheel.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {wheel}\nVersion: {version}\n")
    with nullcontext() if good else pytest.raises(AssertionError):
        assert version_in(tmp_path) == versions[0]
