"""The table of a sweep: a line for each run, its results, and the keys in which runs differ."""

import html
import re
from datetime import UTC, datetime
from pathlib import Path

from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import read_runs
from jaxpar.observe.report.sweep import sweep_table
from jaxpar.pages.render import Cell
from tests.observe.report.written_runs import loss_at, write_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def columns(*folders: Path) -> dict[str, list[str]]:
    """The cells of each column by its head; that of names has none."""
    table, _ = sweep_table(read_runs(list(folders)), NOW)
    return dict(zip(["", *table.heads], map(list, zip(*table.rows, strict=True)), strict=True))


def test_a_line_has_the_results_of_its_run(tmp_path: Path) -> None:
    floors = {"a": 2.0, "b": 2.4, "c": 2.2}
    found = columns(*(write_run(tmp_path / name, floor=floor, mfu=0.25) for name, floor in floors.items()))
    assert found[""] == ["a", "b", "c"]
    losses = [loss_at(60, floor) + 0.1 for floor in floors.values()]
    assert found["validation loss"] == [f"{loss:.4f}" for loss in losses]
    cells = [cell for cell in found["validation loss"] if isinstance(cell, Cell)]
    assert [round(cell.order or 0, 6) for cell in cells] == [round(loss, 6) for loss in losses]
    assert (found["MFU"], found["tokens/s"], found["time in steps"]) == (["25.0%"] * 3, ["8.19k"] * 3, ["30.0 s"] * 3)


def test_only_keys_that_differ_are_columns_and_numbers_sort_as_numbers(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(steps), steps=steps) for steps in (20, 100, 60)]
    found = columns(*folders, write_run(tmp_path / "muon", optimizer="muon"))
    assert found["run.steps"] == ["20", "100", "60", "60"]
    assert [cell.order for cell in found["run.steps"] if isinstance(cell, Cell)] == [20, 100, 60, 60]
    assert found["optimizer.name"] == ["adamw"] * 3 + ["muon"]
    assert not {"run.name", "model.layers", "MFU"} & set(found)


def test_a_run_without_results_or_configuration_has_empty_cells(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, steps=steps) for name, steps in (("a", 20), ("b", 40), ("c", 60))]
    (folders[2] / "config.yaml").unlink()
    folders.append(write_run(tmp_path / "d", until=0))
    found = columns(*folders)
    assert found["run.steps"] == ["20", "40", "", "60"] and found["validation loss"][3] == ""
    _, note = sweep_table(read_runs(folders), NOW)
    assert note == "The configuration of c is not known."


def test_the_page_has_the_curves_of_all_and_a_table_that_sorts(tmp_path: Path) -> None:
    names = ["a", "<b>&", *(f"run{i}" for i in range(10))]
    page = html_page(read_runs([write_run(tmp_path / name, steps=10) for name in names]))
    assert "<h1>12 runs: a to run9</h1>" in page
    assert len(re.findall(r'data-run="\d+"', page)) == 12
    assert 'class="sortable" id="sweep"' in page and "<b>&" not in page and html.escape("<b>&") in page
    assert page.count('"loss":[[2,4,6,8,10]') == 12
