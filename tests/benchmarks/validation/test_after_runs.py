"""Rows of any software are predicted after runs of the same software on the same GPUs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from math import log
from pathlib import Path
from statistics import median

import pytest

from benchmarks.validation.__main__ import main
from benchmarks.validation.after_runs import AfterRuns, after_runs, lines
from benchmarks.validation.published import PUBLISHED
from jaxpar.observe.writers.measured_row import MEASURED_FILE
from tests.sentences import refused

UNHEARD = "Unheard"
type Row = dict[str, str]


@pytest.fixture
def rows() -> list[Row]:
    """Rows of ten layouts of one system, under a name that is not known."""
    with PUBLISHED.open(newline="") as stream:
        every = csv.DictReader(line for line in stream if not line.startswith("#"))
        own = [row for row in every if row["source"] == "vtrain_multi" and row["n_gpus"] == "64"][:10]
    return [row | {"framework": UNHEARD} for row in own]


def written(path: Path, rows: Iterable[Mapping[str, str]]) -> Path:
    rows = list(rows)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def slower(row: Row, factor: float) -> Row:
    cell: Callable[[float, str], str] = lambda scale, text: f"{scale * float(text):g}" if text else ""
    speed, took = cell(1 / factor, row["tokens_per_s_per_gpu"]), cell(factor, row["step_time_s"])
    return row | {"tokens_per_s_per_gpu": speed, "step_time_s": took}


def width(one: AfterRuns) -> float:
    return log(one.interval_s[1] / one.interval_s[0])


def test_rows_of_unknown_software_follow_its_own_runs(tmp_path: Path, rows: list[Row]):
    """All of them take half as long again: three runs show it, and the intervals of the others narrow."""
    rows = [slower(row, 1.5) for row in rows]
    other = slower(rows[0] | {"framework": "Another"}, 4.0)
    data = written(tmp_path / "data.csv", rows[3:])
    before, _ = after_runs(data, written(tmp_path / "other.csv", [other]))
    after, _ = after_runs(data, written(tmp_path / "runs.csv", [*rows[:3], other]))
    assert {one.runs for one in before} == {0} and {one.runs for one in after} == {3}
    off = lambda found: median(abs(one.error or 0) for one in found)
    assert off(after) < 0.35 * off(before)
    assert all(width(one) < 0.8 * width(earlier) for one, earlier in zip(after, before, strict=True))
    assert all(one.interval_s[0] < one.step_time_s < one.interval_s[1] for one in (*before, *after))
    assert all(one.like for one in after) and not any(one.like for one in before)


def test_a_row_needs_no_time_and_is_no_measurement_of_itself(tmp_path: Path, rows: list[Row]):
    untimed = rows[1] | {"tokens_per_s_per_gpu": "", "step_time_s": ""}
    both = written(tmp_path / "both.csv", [rows[0], untimed])
    (first, second), _ = after_runs(both, both)
    assert (first.runs, second.runs) == (0, 1)
    assert second.error is None and second.step_time_s > 0
    text = "\n".join(lines([first, second], []))
    assert "Without such a run: 1; these are predicted without one." in text


def test_a_row_whose_times_are_blanked_is_predicted_without_its_own_run(tmp_path: Path, rows: list[Row]):
    """Its speed is not read from the other file."""
    blank = [row | {"tokens_per_s_per_gpu": "", "step_time_s": ""} for row in rows[:2]]
    found, _ = after_runs(written(tmp_path / "data.csv", blank), written(tmp_path / "runs.csv", rows[:1]))
    assert [one.runs for one in found] == [0, 1]
    later, _ = after_runs(tmp_path / "data.csv", written(tmp_path / "slow.csv", [slower(rows[0], 3.0)]))
    assert later[0].step_time_s == found[0].step_time_s and later[1].step_time_s > found[1].step_time_s


def test_the_command_prints_them_and_json_has_them(tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]):
    data = written(tmp_path / "data.csv", [*rows[1:3], rows[3] | {"gpu": "TPU-v5"}])
    runs = written(tmp_path / "runs.csv", rows[:1])
    command = ["--data", str(data), "--measured", str(runs)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"{UNHEARD}" in text and "Rows that cannot be timed:" in text and "tpu-v5" in text
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["predicted"]) == 2 and len(found["refused"]) == 1
    one = found["predicted"][0]
    assert (one["software"], one["runs"]) == (UNHEARD, 1)
    assert one["interval_s"][0] < one["step_time_s"] < one["interval_s"][1]
    assert one["error"] == pytest.approx(one["measured_s"] / one["step_time_s"] - 1)


def test_files_without_a_row_to_use_are_refused(tmp_path: Path, rows: list[Row]):
    good = written(tmp_path / "good.csv", rows[:1])
    untimed = written(tmp_path / "untimed.csv", [rows[0] | {"tokens_per_s_per_gpu": "", "step_time_s": ""}])
    wrong = written(tmp_path / "wrong.csv", [rows[0] | {"gpu": "TPU-v5"}])
    with refused("--measured", "untimed.csv", "no row has a time"):
        after_runs(good, untimed)
    with refused("--data", "wrong.csv", "no row can be timed", "row 2", "tpu-v5"):
        after_runs(wrong, good)


def test_the_folder_of_a_run_is_read(tmp_path: Path, rows: list[Row]):
    data = written(tmp_path / "data.csv", rows[1:2])
    folder = tmp_path / "run"
    folder.mkdir()
    with refused(f"--measured {folder}", MEASURED_FILE):
        after_runs(data, folder)
    file = written(folder / MEASURED_FILE, rows[:1])
    assert after_runs(data, folder) == after_runs(data, file)
    assert after_runs(data, folder)[0][0].runs == 1


def test_a_file_that_is_missing_is_named_with_its_option(tmp_path: Path, rows: list[Row]):
    good, missing = written(tmp_path / "good.csv", rows[:1]), tmp_path / "missing.csv"
    with refused(f"--data {missing}: there is no such file"):
        after_runs(missing, good)
    with refused(f"--measured {missing}: there is no such file"):
        after_runs(good, missing)
