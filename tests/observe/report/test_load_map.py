"""Heat maps by layer and step of what blocks and features record; and the curves of what blocks report."""

from pathlib import Path
from typing import Any

from jaxpar.observe.report.curves import page_data, points
from jaxpar.observe.report.load_map import MOST_COLUMNS, load_maps
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import RunRecord, read_runs
from jaxpar.training.run.progress import block_means, layer_means
from tests.observe.report.written_runs import write_run

EXPERTS = {"load": 2.0, "entropy": 1.5, "dropped": 0.0, "clusters": 0.4}


def test_values_of_blocks_are_means_over_their_layers_and_values_of_layers_are_of_those_alone():
    report = {"experts.tokens": 2.0, "experts.load": 4.5, "states.tokens": 0.0, "states.norm": 0.0, "other": 1.0}
    report |= {"experts.load.0": 0.0, "experts.load.1": 1.5, "experts.load.2": 3.0}
    assert block_means(report) == {"experts": {"load": 2.25}}
    assert layer_means(report) == {"experts_load": {"1": 1.5, "2": 3.0}}
    assert block_means({}) == layer_means({}) == {}


def test_a_map_has_a_row_for_each_layer_and_the_mean_of_neighbouring_steps():
    lines = [{"step": step, "features": {"loads": {"1": 1.0, "10": 1.0 + step}}} for step in range(2 * MOST_COLUMNS)]
    [[found]] = load_maps(
        [RunRecord("a", Path("a"), metrics=[*lines]), RunRecord("b", Path("b"), metrics=[{"step": 1}])]
    ).values()
    assert found.layers == [1, 10] and len(found.steps) == MOST_COLUMNS and found.steps[1] == "2 to 3"
    assert found.rows[0][1][1] == "1.00" and found.rows[1][1][1] == "3.50"
    assert found.rows[1][-1][0] == 1.0 and found.most == found.rows[1][-1][1]


def test_the_palest_color_is_the_same_in_every_run():
    """1 of loads, as many tokens as every other expert; 0 of other numbers: the maps of two runs can be compared."""
    lines = [{"step": 1, "features": {name: {"1": 1.5, "2": 2.0} for name in ("experts_load", "matmul_reach")}}]
    maps = load_maps([RunRecord("a", Path("a"), metrics=lines)])
    assert [found.least for [found] in maps.values()] == ["1.00", "0.00"]
    assert [found.rows[0][0][0] for [found] in maps.values()] == [0.5, 0.75]


def test_the_page_shows_the_map_and_the_curves(tmp_path: Path):
    write_run(
        tmp_path / "run", blocks={"experts": EXPERTS, "mine": {"norm": 2.0}}, features={"loads": {"0": 1.0, "1": 2.5}}
    )
    runs = read_runs([tmp_path / "run"])
    assert points(runs[0], "experts.entropy")[0][1] == 1.5
    data: Any = page_data(runs)
    titles = {name: chart["title"] for chart in data["charts"] for name in chart["series"]}
    assert (
        data["runs"][0]["series"].keys() >= {f"experts.{name}" for name in EXPERTS}
        and titles["mine.norm"] == "mine: norm"
    )
    assert titles["experts.load"] == "Load of the fullest expert, relative to the mean"
    assert "layer 1, step 2: 2.50" in html_page(runs) and "cut off" not in html_page(runs)


def test_the_page_shows_what_features_record_of_layers(tmp_path: Path):
    features = {"matmul_reach": {"1": 0.5, "2": 1.25}, "matmul_scales": {"up": [1.0, 2.0]}}
    write_run(tmp_path / "run", features=features)
    page = html_page(read_runs([tmp_path / "run"]))
    assert "layer 2, step 2: 1.25" in page and "matmul reach, by layer and step" in page
    assert "loads, by layer" not in page and "scales, by layer" not in page, "a list is no number of a layer"
