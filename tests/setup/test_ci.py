"""`.ci/run`, whose parts are stand-ins: it ends with the first part that fails."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PARTS = ("setup-test", "lint", "types", "imports", "site", "test", "test-ci")
LEDGER = "tests/passed_alone.txt"


def ci(
    folder: Path, fails: str, *, alone: str = "fails", failed: int = 1, ledger: str = "", stays: str = "{}"
) -> subprocess.CompletedProcess[str]:
    """`.ci/run` where `make fails` fails, and what failed of the tests, alone, does as `alone` states.

    An earlier run left a failed test that no longer fails; `stays` is what pytest still has as failed after the run
    alone.
    """
    (folder / ".ci").mkdir()
    (folder / "tests").mkdir(exist_ok=True)
    (folder / LEDGER).write_text(ledger)
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    cache = folder / ".pytest_cache/v/cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text('{"test_earlier": true}')
    now = ", ".join(f'"test_{number}": true' for number in range(failed))
    tools = folder / ".venv-test/bin"
    tools.mkdir(parents=True)
    (tools / "python").symlink_to(sys.executable)
    make = tools / "make"
    again = "0" if alone == "passes" else "1"
    file = cache / "lastfailed"
    write = lambda failed: f"echo '{failed}' > {file}"
    keeps = f"""[ ! -e {file} ] || now='"test_earlier": true, '; echo "{{$now"'{now}}}' > {file}"""
    last = f'case "$*" in *--last-failed*) {write(stays)}; exit {again};; esac'
    make.write_text(f'#!/bin/sh\n{last}\n[ "$2" != {fails} ] || {{ {keeps}; echo broken; exit 2; }}\n')
    make.chmod(0o755)
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", str(folder / ".ci/run")], capture_output=True, text=True, check=False, env=os.environ | path
    )


def begun(done: subprocess.CompletedProcess[str]) -> list[str]:
    lines = [line.removeprefix("== make ") for line in done.stdout.splitlines() if line.startswith("== make ")]
    return [line for line in lines if line in PARTS]


def test_all_parts_run_where_none_fails(tmp_path: Path):
    done = ci(tmp_path, "nothing")
    assert done.returncode == 0 and begun(done) == [*PARTS], done.stdout + done.stderr


@pytest.mark.parametrize("part", PARTS)
def test_it_fails_with_the_first_part_that_fails_and_runs_no_other(tmp_path: Path, part: str):
    done = ci(tmp_path, part)
    assert done.returncode != 0 and begun(done) == [*PARTS[: PARTS.index(part) + 1]], done.stdout + done.stderr


@pytest.mark.parametrize("part", ["test", "test-ci"])
def test_tests_that_pass_alone_are_noted_and_the_run_goes_on(tmp_path: Path, part: str):
    done = ci(tmp_path, part, alone="passes", failed=2, ledger="2026-11-01 test_00\n")
    assert done.returncode == 0 and begun(done) == [*PARTS], done.stdout + done.stderr
    assert re.fullmatch(r"2026-11-01 test_00\n(\d{4}-\d\d-\d\d) test_0\n\1 test_1\n", (tmp_path / LEDGER).read_text())
    assert done.stdout.count("test_0\ntest_1\n") == 1


def test_what_a_checkout_has_to_commit_is_printed_with_its_date(tmp_path: Path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / LEDGER).touch()
    subprocess.run(["git", "-C", tmp_path, "add", LEDGER], check=True)
    done = ci(tmp_path, "test", alone="passes")
    assert re.search(r"^\+\d{4}-\d\d-\d\d test_0$", done.stdout, re.M), done.stdout + done.stderr


def test_a_test_that_did_not_run_alone_fails_the_run_and_is_not_noted(tmp_path: Path):
    done = ci(tmp_path, "test", alone="passes", failed=2, stays='{"test_1": true}')
    assert done.returncode != 0 and begun(done)[-1] == "test", done.stdout + done.stderr
    assert (tmp_path / LEDGER).read_text() == ""


@pytest.mark.parametrize("part", ["test", "test-ci"])
def test_a_test_that_passed_alone_before_fails_the_run(tmp_path: Path, part: str):
    done = ci(tmp_path, part, alone="passes", failed=2, ledger="2026-11-01 test_1\n")
    assert done.returncode != 0 and begun(done)[-1] == part, done.stdout + done.stderr
    assert "test_1" in done.stderr


def test_all_tests_that_failed_beside_one_of_the_ledger_are_noted(tmp_path: Path):
    done = ci(tmp_path, "test", alone="passes", failed=3, ledger="2026-11-01 test_0\n2026-11-01 test_1\n")
    assert done.returncode != 0 and re.findall(r"test_\d", done.stderr) == ["test_0", "test_1"]
    assert (tmp_path / LEDGER).read_text().endswith(" test_2\n")


def test_more_than_three_that_failed_do_not_run_again(tmp_path: Path):
    assert ci(tmp_path, "test", alone="passes", failed=4).returncode != 0


def test_the_workflow_runs_what_lands_and_keeps_the_site_and_the_packages():
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands == ["bash .ci/run", "make dist"]
    kept = [step["with"]["path"].split("/")[0] for step in steps if "upload-artifact" in step.get("uses", "")]
    assert kept == ["build", "dist"]
