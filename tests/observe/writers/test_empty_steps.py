"""A logged step that has no loss, in every file and on the screen."""

import json
from pathlib import Path
from typing import Any

from jaxpar.observe.events import Listeners
from jaxpar.observe.report.page import html_page
from jaxpar.observe.report.run_record import read_runs
from jaxpar.observe.writers.jsonl import JsonLines
from jaxpar.observe.writers.plot import LossPlot
from jaxpar.observe.writers.scalars import step_scalars
from jaxpar.observe.writers.summary import SummaryFile, read_summary
from tests.observe.records import record, run_info, summary
from tests.observe.report.written_runs import write_run
from tests.observe.writers.test_console import text, view


def test_a_step_without_a_loss_is_null_in_files_none_on_the_screen_and_a_gap_in_curves(tmp_path: Path) -> None:
    shown, screen = view()
    plot = LossPlot()
    everyone = Listeners([JsonLines(), plot, SummaryFile(), shown])
    everyone.start(run_info(tmp_path))
    everyone.step(record(1))
    everyone.step(record(2, loss=None, empty_steps=1))
    everyone.end(summary(loss=None, empty_steps=1))
    everyone.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["loss"], line["empty_steps"]) for line in lines] == [(2.99, 0), (None, 1)]
    assert [step for step, _ in plot.curves.train] == [1]
    assert "train/loss" not in step_scalars(record(2, loss=None)) and "train/loss" in step_scalars(record(1))
    found = read_summary(tmp_path / "summary.json")
    assert found is not None and (found["loss"], found["empty_steps"]) == (None, 1)
    assert " none " in text(screen) and "1 step" in text(screen)


def test_a_page_shows_a_run_with_such_steps(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"loss": None, "empty_steps": 3}
    folder = write_run(tmp_path / "run", steps=20, **nothing)
    page = html_page(read_runs([folder]))
    assert "steps without a token that the loss counts" in page
