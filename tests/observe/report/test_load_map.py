"""The heat map of experts' load, by layer and step; and their curves."""

from __future__ import annotations

from pathlib import Path

from jaxpar.layers.experts.reports import ROUTED_TOKENS, layer_loads, layer_report
from jaxpar.observe.report.curves import page_data, points
from jaxpar.observe.report.load_map import MOST_COLUMNS, load_maps
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import RunRecord, read_runs
from tests.observe.report.written_runs import write_run

EXPERTS = {"load": 2.0, "entropy": 1.5, "dropped": 0.0, "overflows": 0.0, "auxiliary_loss": 0.01, "sent_bytes": 4e6}
EXPERTS |= {"clusters": 0.4, "merged": 0.1}


def test_loads_of_layers_are_means_over_tokens():
    report = {ROUTED_TOKENS: 20.0, layer_report(0): 0.0, layer_report(1): 15.0, layer_report(2): 30.0}
    assert layer_loads(report) == {"1": 1.5, "2": 3.0}
    assert layer_loads({}) == {}


def test_a_map_has_a_row_for_each_layer_and_the_mean_of_neighbouring_steps():
    lines = [{"step": step, "expert_loads": {"1": 1.0, "10": 1.0 + step}} for step in range(2 * MOST_COLUMNS)]
    [[found]] = load_maps(
        [RunRecord("a", Path("a"), metrics=[*lines]), RunRecord("b", Path("b"), metrics=[{"step": 1}])]
    ).values()
    assert found.layers == [1, 10] and len(found.steps) == MOST_COLUMNS and found.steps[1] == "2 to 3"
    assert found.rows[0][1] == (0.0, "1.00") and found.rows[1][1][1] == "3.50"
    assert found.rows[1][-1][0] == 1.0 and found.most == found.rows[1][-1][1]


def test_the_page_shows_the_map_and_the_curves(tmp_path: Path):
    write_run(tmp_path / "run", experts=EXPERTS, expert_loads={"0": 1.0, "1": 2.5})
    runs = read_runs([tmp_path / "run"])
    assert points(runs[0], "experts.entropy")[0][1] == 1.5
    assert set(page_data(runs)["runs"][0]["series"]) >= {f"experts.{name}" for name in EXPERTS if name != "overflows"}
    assert "layer 1, step 2: 2.50" in html_page(runs) and "cut off" not in html_page(runs)


def test_the_page_shows_what_features_record_of_layers(tmp_path: Path):
    features = {"matmul_reach": {"1": 0.5, "2": 1.25}, "matmul_scales": {"up": [1.0, 2.0]}}
    write_run(tmp_path / "run", features=features)
    page = html_page(read_runs([tmp_path / "run"]))
    assert "layer 2, step 2: 1.25" in page and "matmul reach, by layer and step" in page
    assert "fullest expert" not in page and "scales, by layer" not in page, "a list is no number of a layer"
