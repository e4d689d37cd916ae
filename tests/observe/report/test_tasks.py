"""Results of `python -m jaxpar.evaluate` are on the page of their run, the newest of each."""

from pathlib import Path
from typing import Any

import pytest

from jaxpar.observe.evaluations import EVALUATIONS_FILE, append_evaluation
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import read_runs
from jaxpar.observe.report.tasks import tasks
from tests.observe.report.written_runs import write_run


def evaluated(folder: Path, step: int, metrics: dict[str, Any], task: str = "quiz") -> None:
    result = {"kind": "multiple_choice", "examples": 1200, "metrics": metrics}
    append_evaluation(folder, {"time": "2026-01-02T03:04:05+00:00", "step": step, "tasks": {task: result}})


def test_the_newest_of_each_number_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until=20)
    assert tasks(read_runs([folder])) == [] and 'id="tasks"' not in html_page(read_runs([folder]))
    evaluated(folder, 10, {"acc": [0.25, 0.125], "acc_norm": [0.5, None]})
    evaluated(folder, 20, {"acc": [0.75, 0.0625]})
    ((_, table),) = tasks(read_runs([folder]))
    assert [list(row) for row in table.rows] == [
        ["quiz", "acc", "0.7500 ± 0.0625", "1,200", "20", "2026-01-02 03:04"],
        ["quiz", "acc_norm", "0.5000", "1,200", "10", "2026-01-02 03:04"],
    ]
    assert "0.7500 ± 0.0625" in html_page(read_runs([folder]))


def test_after_half_a_line_the_next_results_have_a_line_of_their_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until=20)
    evaluated(folder, 10, {"acc": [0.25, None]})
    with (folder / EVALUATIONS_FILE).open("a") as file:
        file.write('{"time": "2026-01-02T0')
    evaluated(folder, 20, {"acc": [0.5, None]})
    evaluated(folder, 20, {"f1": [0.75, None]})
    assert [(row[1], row[2]) for row in tasks(read_runs([folder]))[0][1].rows] == [("acc", "0.5000"), ("f1", "0.7500")]
    assert len((folder / EVALUATIONS_FILE).read_text().splitlines()) == 4


def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until=20)
    with pytest.raises(ValueError, match="nan"):
        evaluated(folder, 10, {"acc": [float("nan"), None]})
    assert not (folder / EVALUATIONS_FILE).exists() or not (folder / EVALUATIONS_FILE).read_bytes()


def test_values_of_runs_stand_side_by_side(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", until=20), write_run(tmp_path / "b", until=20)
    evaluated(first, 20, {"acc": [0.25, 0.125]})
    evaluated(second, 20, {"acc": [0.5, 0.125]})
    evaluated(second, 20, {"acc": [1.0, None]}, "other")
    ((_, table),) = tasks(read_runs([first, second]))
    shown = [["quiz, acc", "0.2500 ± 0.1250", "0.5000 ± 0.1250"], ["other, acc", "", "1.0000"]]
    assert [list(row) for row in table.rows] == shown


@pytest.mark.parametrize(
    "line",
    [
        '{"tasks": 3}', '{"tasks": {"a": 1}}', '{"tasks": {"a": {"metrics": {"b": [1]}}}}',
        '{"tasks": {"a": {"metrics": {"b": ["x", {}]}}}}', "[]",
    ],
)  # fmt: skip
def test_damaged_results_are_left_out(line: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", until=20)
    (folder / EVALUATIONS_FILE).write_text(f"{line}\n")
    assert tasks(read_runs([folder])) == []
