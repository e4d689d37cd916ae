"""metrics.jsonl over kills and restores."""

import json
from pathlib import Path

import pytest

from jaxpar.observe.writers.jsonl import JsonLines, read_metrics
from tests.observe.records import record, run_info
from tests.sentences import refused


def write(folder: Path, steps: list[int], first_step: int = 1, **changes) -> None:
    writer = JsonLines()
    writer.start(run_info(folder, first_step=first_step))
    for step in steps:
        writer.step(record(step, **changes))
    writer.close()


def steps_in(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_line_holds_the_record_and_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    write(tmp_path, [10], eval_loss=2.5)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    for key in ("step", "loss", "grad_norm", "learning_rate", "tokens_per_second", "step_time_s"):
        assert key in line
    assert line["eval_loss"] == 2.5 and "mfu" not in line


def test_a_restored_run_replaces_the_steps_after_its_checkpoint_and_one_from_the_start_all(tmp_path: Path) -> None:
    write(tmp_path, [10, 20, 30], loss=1.0)
    write(tmp_path, [30, 40], first_step=21, loss=2.0)
    assert steps_in(tmp_path) == [10, 20, 30, 40]
    assert [values["loss"] for values in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 1.0, 2.0, 2.0]
    write(tmp_path, [10])
    assert steps_in(tmp_path) == [10]
    write(tmp_path, [20], first_step=11)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_run_that_goes_back_replaces_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    writer = JsonLines()
    writer.start(run_info(tmp_path))
    for step in (1, 2, 3):
        writer.step(record(step, loss=1.0))
        assert steps_in(tmp_path) == list(range(1, step + 1)), "a line is on disk before the next step"
    writer.rewound(1)
    assert steps_in(tmp_path) == [1]
    writer.step(record(2, loss=2.0))
    writer.close()
    assert [values["loss"] for values in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 2.0]


@pytest.mark.parametrize(("end", "steps"), [(1, [10, 30]), (17, [10, 30]), (-1, [10, 30]), (None, [10, 20, 30])])
def test_a_line_broken_by_a_kill_is_dropped_unless_it_lost_only_its_newline(tmp_path: Path, end, steps) -> None:
    write(tmp_path, [10, 20])
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.rstrip()[:end])
    write(tmp_path, [30], first_step=21)
    assert steps_in(tmp_path) == steps


def test_a_broken_line_in_the_middle_is_named_and_the_file_left_alone(tmp_path: Path) -> None:
    write(tmp_path, [10, 20, 30])
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "not json\n" + lines[2])
    before = path.read_bytes()
    with refused(str(path), "line 2", "JSON object", "move the file away"):
        write(tmp_path, [40], first_step=31)
    assert path.read_bytes() == before


def test_a_loss_that_is_not_finite_is_null(tmp_path: Path) -> None:
    write(tmp_path, [1], loss=float("nan"), grad_norm=float("inf"))
    text = (tmp_path / "metrics.jsonl").read_text()
    values = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert values["loss"] is None and values["grad_norm"] is None
