"""The tests that run at each level, on a small suite of its own."""

import json
import re
from pathlib import Path

import pytest

from tests import patience
from tests.processes import ROOT, run_python
from tests.selection import ONE_OF, SLOW, drawn, has_its_turn

SUITE = """
import pytest

@pytest.mark.matrix(quick=2, ci=3)
@pytest.mark.parametrize("row", range(20))
def test_rows(row): pass

@pytest.mark.matrix(quick=("b",), ci=1)
@pytest.mark.parametrize("row", ["a", "b", pytest.param("c", marks=pytest.mark.long), "d"])
def test_named(row): pass

@pytest.mark.matrix(ci=1, always=True)
@pytest.mark.parametrize("row", range(9))
def test_each_time(row): pass

@pytest.mark.matrix(quick=("x",), ci=0)
@pytest.mark.parametrize("case", ["x", "y"])
def test_heavy(case): pass

def test_plain(): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.long(always=True)
def test_always(): pass

@pytest.mark.release
def test_release(): pass
"""
SLOW_FILE = """
def test_slow(): pass

def test_fast(): pass
"""
DRAWN = """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("part", range(2))
def test_drawn_{number}(part): pass
"""
LONG_FILE = """
import pytest

pytestmark = pytest.mark.long

@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("row", range(9))
def test_sliced(row): pass
"""


SLOWS = {"test_slow.py::test_slow": SLOW, "test_slow.py::test_fast": SLOW - 0.1, "test_suite.py::test_heavy[x]": SLOW}


def chosen(folder: Path, *arguments: str, ledger: str = "") -> tuple[set[str], str]:
    """Names of the tests that a command runs, and what it prints."""
    recorded = "selection.SECONDS, selection.LEDGER = Path('seconds.json'), Path('ledger.txt')\n"
    (folder / "conftest.py").write_text(f"from pathlib import Path\nfrom tests.conftest import *\n{recorded}")
    (folder / "ledger.txt").write_text(ledger)
    ids = [f"test_drawn_{number}.py::test_drawn_{number}[{part}]" for number in range(6) for part in range(2)]
    (folder / "seconds.json").write_text(
        json.dumps(dict.fromkeys(ids, 10.0) | {"test_suite.py::test_always": 5.0} | SLOWS)
    )
    (folder / "test_slow.py").write_text(SLOW_FILE)
    for number in range(6):
        (folder / f"test_drawn_{number}.py").write_text(DRAWN.format(number=number))
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "test_long_file.py").write_text(LONG_FILE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  matrix\n  long\n  release\n")
    variables = {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "JAX_PLATFORMS": "cpu"}
    command = ("-m", "pytest", "-v", *arguments)
    done = run_python(*command, cwd=folder, without=("PYTEST_",), **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    names = set(re.findall(r"^test_\w+\.py::(\S+) PASSED", done.stdout, re.MULTILINE))
    return names, done.stdout


@pytest.mark.long
def test_ci_runs_what_make_test_leaves_out_and_draws_rows_by_the_seed(tmp_path: Path):
    quick, printed = chosen(tmp_path)
    assert {name for name in quick if "rows" not in name} == {"test_plain", "test_named[b]", "test_fast"}
    assert len(quick) == 5
    assert "level quick: all but long tests" in printed

    first, printed = chosen(tmp_path, "--level", "ci", "--budget", "70", "--draw", "moon")
    again, _ = chosen(tmp_path, "--level", "ci", "--budget", "70", "--draw", "moon")
    other, _ = chosen(tmp_path, "--level", "ci", "--budget", "70", "--draw", "ten noon")
    none, _ = chosen(tmp_path, "--level", "ci", "--budget", "70", "--draw", "three")
    assert "level ci: long tests for 70 s of processor time" in printed
    assert "drawn by moon (to repeat them: --draw 'moon')" in printed
    assert first == again != other
    assert {"test_named[c]"} == {name for name in none if "rows" in name or "named" in name or "sliced" in name}
    for names in (first, other, none):
        assert len([name for name in names if "each_time" in name]) == 1
    for names in (first, other):
        assert not names & quick
        assert {"test_heavy[x]"} == {name for name in names if "heavy" in name}, "a fixed row that is slow"
        assert {"test_always", "test_long", "test_slow"} <= names, "always, without a recorded time, and slow"
        assert "test_named[c]" in names and "test_release" not in names
        assert len([name for name in names if "rows" in name]) == 3
        assert len([name for name in names if "named" in name]) == 2
        assert len([name for name in names if "sliced" in name]) == 2
    files = [sorted({name[:-3] for name in names if "drawn" in name}) for names in (first, other)]
    assert files[0] != files[1] and all(len(each) == 3 for each in files), "whole files that fit in 70 - 5 seconds"
    assert len([name for name in first if "drawn" in name]) == 6


@pytest.mark.long
def test_what_failed_runs_again_whatever_is_drawn(tmp_path: Path):
    cache = tmp_path / ".pytest_cache/v/cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({"test_suite.py::test_rows[7]": True}))
    names, _ = chosen(tmp_path, "--level", "ci", "--draw", "three", "--last-failed")
    assert names == {"test_rows[7]"}
    failed = [
        "test_suite.py::test_rows[9]",
        *(f"test_drawn_{number}.py::test_drawn_{number}[1]" for number in range(6)),
    ]
    ledger = "".join(f"2026-11-30 {name}\n" for name in failed)
    names, _ = chosen(tmp_path, "--level", "ci", "--draw", "three", "--budget", "0", ledger=ledger)
    assert {name.split("::")[1] for name in failed} <= names and "test_rows[7]" not in names


@pytest.mark.long
def test_everything_runs_where_it_is_asked_for(tmp_path: Path):
    whole, printed = chosen(tmp_path, "--level", "all")
    assert len(whole) == 62 and "the slowest tests" in printed
    by_id, _ = chosen(tmp_path, "test_suite.py::test_named[a]", "test_suite.py::test_release")
    assert by_id == {"test_named[a]", "test_release"}
    by_word, _ = chosen(tmp_path, "--level", "ci", "-k", "named and not b")
    assert len(by_word) == 2 and "test_named[c]" in by_word, "the quick row is not among them"


def test_rows_of_one_matrix_are_the_same_for_all_its_tests_whatever_the_order():
    rows = [f"row {number}" for number in range(30)]
    once = drawn(rows, 4, "seed")
    assert len(once) == 4 and drawn(rows[::-1], 4, "seed")[::-1] == once
    assert drawn(rows, 50, "seed") == rows
    counts = {row: sum(row in drawn(rows, 4, str(seed)) for seed in range(300)) for row in rows}
    assert min(counts.values()) > 15, "each row has its turn"


def test_every_matrix_has_its_turn_as_often_as_the_others():
    matrices = [[f"row {number}" for number in range(size)] for size in range(2, 30)]
    turns = [sum(has_its_turn(rows[::-1], str(seed)) for seed in range(300)) for rows in matrices]
    assert all(abs(number - 300 / ONE_OF) < 45 for number in turns)


def test_every_matrix_has_rows_that_ci_draws():
    marks = {
        (file.name, mark)
        for file in Path(__file__).parent.rglob("test_*.py")
        if file != Path(__file__)
        for mark in re.findall(r"^@pytest\.mark\.matrix\((.*)\)$", file.read_text(), re.MULTILINE)
    }
    assert len(marks) > 10
    assert [mark for mark in marks if not re.search(r"\bci=[1-9]", mark[1])] == []


def test_limits_grow_with_the_machine_and_never_shrink(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(patience.VARIABLE, "3.5")
    assert patience.seconds(60) == 210
    monkeypatch.delenv(patience.VARIABLE)
    monkeypatch.setattr(patience, "QUIET_S", 1e9)
    assert patience.seconds(60) == 60
    monkeypatch.delenv(patience.VARIABLE)
    monkeypatch.setattr(patience, "QUIET_S", 1e-9)
    assert patience.seconds(60) == 60 * patience.MOST
