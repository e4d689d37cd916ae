"""The curves that the page draws of a run."""

import json
from pathlib import Path

from jaxpar.observe.report.curves import page_data, points, thin, training_clock
from jaxpar.observe.report.run_record import RunRecord, read_runs
from tests.observe.report.written_runs import write_run


def record(*lines: dict[str, object]) -> RunRecord:
    return RunRecord("run", Path("run"), metrics=[dict(line) for line in lines])


def test_a_curve_has_every_finite_value_at_its_step() -> None:
    run = record({"step": 1, "loss": 3.0}, {"step": 2, "loss": None}, {"step": 3}, {"step": 4, "loss": 2})
    assert points(run, "loss") == [(1, 3.0), (4, 2.0)]


def test_each_validation_set_has_a_chart() -> None:
    run = record({"step": 1, "loss": 3.0, "metrics": {"eval_loss_code": 2.5, "eval_loss_web": 3.5}})
    charts = [chart["title"] for chart in page_data([run])["charts"]]
    assert charts[1:] == ["Validation loss on code", "Validation loss on web"]


def test_a_thinned_curve_keeps_its_ends_and_every_spike() -> None:
    found = [(step, 1.0) for step in range(100_000)]
    found[777] = (777, 9.0)
    found[50_001] = (50_001, -4.0)
    kept = thin(found, most=200)
    assert len(kept) <= 200
    assert {(0, 1.0), (777, 9.0), (50_001, -4.0), (99_999, 1.0)} <= set(kept)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert thin(found[:200], most=200) == found[:200]


def test_the_clock_counts_the_steps_between_two_records() -> None:
    run = record({"step": 1, "step_time_s": 2.0}, {"step": 11, "step_time_s": 0.5}, {"step": 21, "step_time_s": 0.25})
    assert training_clock(run) == [(0, 0.0), (1, 2.0), (11, 7.0), (21, 9.5)]


def test_charts_without_values_are_left_out_and_the_data_is_json(tmp_path: Path) -> None:
    data = page_data(read_runs([write_run(tmp_path / "run")]))
    titles = [chart["title"] for chart in data["charts"]]
    assert "Gradient norm" in titles and "Model FLOPs utilisation" not in titles
    [run] = data["runs"]
    assert run["series"]["eval_loss"][0] == [10, 20, 30, 40, 50, 60] and run["batches"] == [[0, 0, 4096]]
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))
