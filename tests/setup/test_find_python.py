"""launch/find_python.sh runs each candidate, in a stated order, and believes nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.setup.programs import FAILING_SHIM, ROOT, WORKS, altered_python, program, run


def find(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Look for a Python on a machine that has only `home`, with programs in `home`/bin."""
    return run(ROOT / "launch/find_python.sh", PATH=str(home / "bin"), HOME=str(home), **environment)


def found(home: Path, **environment: str) -> Path:
    result = find(home, **environment)
    assert (result.returncode, result.stderr) == (0, "")
    return Path(result.stdout.rstrip("\n"))


def test_one_sentence_when_there_is_none(tmp_path: Path):
    result = find(tmp_path)
    assert result.returncode == 1 and result.stdout == "" and result.stderr.count("\n") == 1
    assert "needs CPython 3.12 or newer" in result.stderr


def test_a_failing_shim_and_an_old_python3_lead_to_pyenvs_own_folder(tmp_path: Path):
    for name in ("python3.14", "python3.13", "python3.12"):
        program(tmp_path / "bin" / name, FAILING_SHIM)
    program(tmp_path / "bin/python3", altered_python("sys.version_info = (3, 11, 7)"))
    expected = program(tmp_path / ".pyenv/versions/3.12.1/bin/python3", WORKS)
    assert found(tmp_path) == expected


def test_what_python_names_comes_first(tmp_path: Path):
    program(tmp_path / "bin/python3.14", WORKS)
    expected = program(tmp_path / "elsewhere/python", WORKS)
    assert found(tmp_path, PYTHON=str(expected)) == expected


def test_a_python_variable_that_does_not_serve_is_named_and_passed_over(tmp_path: Path):
    expected = program(tmp_path / "bin/python3.12", WORKS)
    result = find(tmp_path, PYTHON="/nowhere/python")
    assert (result.returncode, result.stdout) == (0, f"{expected}\n")
    assert "PYTHON=/nowhere/python" in result.stderr


def test_on_path_the_newest_name_comes_first(tmp_path: Path):
    program(tmp_path / "bin/python3.12", WORKS)
    program(tmp_path / "bin/python3", WORKS)
    expected = program(tmp_path / "bin/python3.13", WORKS)
    assert found(tmp_path) == expected


def test_pyenvs_folder_begins_with_the_version_that_the_constraints_were_made_on(tmp_path: Path):
    program(tmp_path / "pyenv/versions/3.13.0/bin/python3", WORKS)
    program(tmp_path / "pyenv/versions/3.11.7/bin/python3", WORKS)
    program(tmp_path / "pyenv/versions/3.12.9/bin/python3", FAILING_SHIM)
    expected = program(tmp_path / "pyenv/versions/3.12.1/bin/python3", WORKS)
    assert found(tmp_path, PYENV_ROOT=str(tmp_path / "pyenv")) == expected


def test_uvs_installed_versions_are_found_without_uv(tmp_path: Path):
    expected = program(tmp_path / ".local/share/uv/python/cpython-3.13.1-linux-x86_64-gnu/bin/python3", WORKS)
    assert found(tmp_path) == expected


def test_uv_installs_one_as_the_last_resort(tmp_path: Path):
    program(tmp_path / "store/python3.12", WORKS)
    installed = tmp_path / "installed/python3.12"
    copy = f"/bin/mkdir -p '{installed.parent}' && /bin/cp '{tmp_path}/store/python3.12' '{installed}'"
    uv = f'case "$1 $2" in "python install") {copy};; "python find") echo "{installed}";; esac'
    program(tmp_path / "bin/uv", uv)
    assert found(tmp_path) == installed


@pytest.mark.parametrize(
    "change",
    [
        "sys.version_info = (3, 11, 7)", 'sys.modules["ensurepip"] = None', 'sys.modules["ssl"] = None',
        'sys.modules["venv"] = None', 'sys.implementation.name = "pypy"',
    ],
)  # fmt: skip
def test_a_python_that_cannot_make_the_environment_is_passed_over(tmp_path: Path, change: str):
    program(tmp_path / "bin/python3.14", altered_python(change))
    assert find(tmp_path).returncode == 1


def test_a_virtual_environment_on_path_leads_to_the_interpreter_behind_it(tmp_path: Path):
    program(tmp_path / "bin/python3", altered_python("pass"))
    assert sys.prefix != sys.base_prefix, "the tests run in a virtual environment"
    assert found(tmp_path).samefile(sys.executable) and not found(tmp_path).is_relative_to(sys.prefix)
