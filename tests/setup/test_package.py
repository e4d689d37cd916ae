"""The wheel and the sdist hold what their commands need: installed alone, away from the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("jaxpar", "pallas_kernels")


def tracked(*folders: str) -> set[str]:
    """Paths of the files in folders of the checkout, as git tracks them or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {path for path in listed if (ROOT / path).exists()}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from it, by their endings."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, capture_output=True, check=True)
    [source] = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    subprocess.run([*build, "wheel"], cwd=folder / source.name.removesuffix(".tar.gz"), capture_output=True, check=True)
    [wheel] = folder.glob("*.whl")
    return {"tar.gz": source, "whl": wheel}


@pytest.fixture(scope="module")
def installed(packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel, and with the packages of this one but for the checkout."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv/bin/python"
    [site] = (folder / "venv/lib").glob("python*/site-packages")
    with zipfile.ZipFile(packages["whl"]) as wheel:
        wheel.extractall(site)
    # A path in a .pth file is searched, but .pth files there (the editable install of the checkout) are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, folder: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "XLA_FLAGS")}
    done = subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long(always=True)
def test_they_hold_every_file_of_the_packages(packages: dict[str, Path]):
    expected = tracked(*PACKAGES)
    with zipfile.ZipFile(packages["whl"]) as wheel:
        assert expected - set(wheel.namelist()) == set()
        assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {*PACKAGES}
    with tarfile.open(packages["tar.gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert expected | tracked("configs", "docs", "README.md", "LICENSE", "constraints.txt") <= names


@pytest.mark.long(always=True)
def test_commands_run_from_the_wheel_outside_of_the_checkout(installed: Path, tmp_path: Path):
    where = run(installed, tmp_path, "-c", "import jaxpar, pallas_kernels as p; print(jaxpar.__file__, p.__file__)")
    assert all(Path(file).is_relative_to(installed.parents[1]) for file in where.split())
    assert "plan" in run(installed, tmp_path, "-m", "jaxpar", "--help")
    (tmp_path / "run.yaml").write_text("model: {preset: llama3-8b}\n")
    plan = ("-m", "jaxpar", "plan", "--config", "run.yaml", "--cluster", "h100:1x8", "--top", "1")
    printed = run(installed, tmp_path, *plan, "--json", "--out", "plan.json")
    assert json.loads(printed) and (tmp_path / "plan.json").stat().st_size
    schedule = "-m jaxpar schedule --name 1f1b --stages 2 --microbatches 4 --out s.svg"
    run(installed, tmp_path, *schedule.split())
    assert (tmp_path / "s.svg").read_text().startswith("<svg")
