"""launch/setup.sh makes an environment once, silently, and again when what it was made of has changed.

A stand-in for Python records what it was asked for, so that these tests install nothing.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.setup.programs import ROOT, program, run

PYTHON = """
case "$1 $2" in
    "-m venv") echo venv >>"$CALLS"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    "-m pip") echo "pip $*" >>"$CALLS"; echo "a pip that talks"; echo "and warns" >&2; exit "${PIP_EXIT:-0}" ;;
    "-V ") echo "Python 3.12.1" ;;
    *) echo "$0" ;;
esac
"""


class Checkout:
    """A copy of what setting up reads, on a machine with one (stand-in) Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jaxpar"
        self.home = folder
        shutil.copytree(ROOT / "launch", self.folder / "launch")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        program(self.home / "bin/python3.12", PYTHON)
        program(self.home / "bin/chromium", "exit 0")

    def setup(self, which: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(
            self.folder / "launch/setup.sh",
            which,
            PATH=f"{self.home}/bin:/usr/bin:/bin",
            HOME=str(self.home),
            PYTHON=str(self.home / "bin/python3.12"),
            CALLS=str(self.home / "calls"),
            **environment,
        )

    def calls(self) -> list[str]:
        """The requests to Python since the last look: `venv`, or `pip` and its arguments."""
        path = self.home / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    """A checkout whose test environment stands."""
    assert checkout.setup("test").returncode == 0
    checkout.calls()
    return checkout


def test_the_first_run_makes_the_environment_and_keeps_pip_off_the_screen(checkout: Checkout):
    result = checkout.setup("test")
    assert (result.returncode, result.stderr) == (0, "")
    assert "talks" not in result.stdout and result.stdout.count("\n") == 2
    venv, pip, apart = checkout.calls()
    assert venv == "venv"
    assert "-c constraints.txt -e .[test,compile,data,serve]" in pip
    assert apart.endswith("--target .venv-test/disassembler nvidia-cuda-nvdisasm"), "JAX would take its CUDA from there"


def test_the_second_run_does_nothing(ready: Checkout):
    result = ready.setup("test")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert ready.calls() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed_into_the_environment_that_stands(ready: Checkout, name: str):
    with (ready.folder / name).open("a") as file:
        file.write("# changed\n")
    ready.setup("test")
    assert [call.split()[0] for call in ready.calls()] == ["pip", "pip"]


def test_the_output_of_a_failing_pip_is_shown_and_it_is_tried_again(checkout: Checkout):
    failed = checkout.setup("test", PIP_EXIT="1")
    assert failed.returncode == 1 and "a pip that talks" in failed.stderr and "and warns" in failed.stderr
    assert "Setting up .venv-test failed" in failed.stderr
    checkout.calls()
    assert checkout.setup("test").returncode == 0
    assert [call.split()[0] for call in checkout.calls()] == ["venv", "pip", "pip"]


def test_a_half_installed_change_is_not_mistaken_for_the_old_environment_when_it_is_reverted(ready: Checkout):
    constraints = ready.folder / "constraints.txt"
    before = constraints.read_text()
    constraints.write_text(before + "# changed\n")
    assert ready.setup("test", PIP_EXIT="1").returncode == 1
    ready.calls()
    constraints.write_text(before)
    ready.setup("test")
    assert [call.split()[0] for call in ready.calls()] == ["venv", "pip", "pip"]


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "its Python has gone"])
def test_an_environment_that_was_moved_or_whose_python_has_gone_is_made_again(ready: Checkout, moved: bool):
    if moved:
        ready.folder = ready.folder.rename(ready.home / "moved")
    else:
        (ready.folder / ".venv-test/bin/python").unlink()
    ready.setup("test")
    assert [call.split()[0] for call in ready.calls()] == ["venv", "pip", "pip"]


def test_training_gets_cuda_where_there_is_an_nvidia_driver_and_never_the_test_tools(checkout: Checkout):
    program(checkout.home / "bin/nvidia-smi", "exit 0")
    assert checkout.setup("train").returncode == 0 and checkout.calls()[-1].endswith("-e .[data,cuda12]")
    assert (checkout.folder / ".venv").is_dir() and not (checkout.folder / ".venv-test").exists()


def test_training_gets_no_cuda_where_there_is_no_driver(checkout: Checkout):
    program(checkout.home / "bin/nvidia-smi", "exit 9")
    driver = Path("/proc/driver/nvidia/version").exists()
    assert checkout.setup("train").returncode == 0
    assert checkout.calls()[-1].endswith("-e .[data,cuda12]" if driver else "-e .[data]")


def test_without_a_python_it_reports_it_in_one_sentence(checkout: Checkout):
    program(checkout.home / "bin/python3.12", "exit 1")
    for name in ("python3.14", "python3.13", "python3"):
        program(checkout.home / "bin" / name, "exit 1")
    result = checkout.setup("train")
    assert result.returncode == 1 and "No Python found" in result.stderr.splitlines()[-1]
    assert "Setting up" not in result.stderr
    assert not (checkout.folder / ".venv").exists()


def test_an_unknown_environment_is_refused(checkout: Checkout):
    assert checkout.setup("nothing").returncode == 2


def test_an_environment_of_another_folder_that_is_linked_here_is_left_as_it_is(checkout: Checkout, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    (checkout.folder / ".venv-test").symlink_to(tmp_path / "other")
    done = checkout.setup("test")
    assert done.returncode == 0 and checkout.calls() == []
    assert (tmp_path / "other/file").exists()
