"""The page of a search: its plans in a table and a picture, and their schedules in color."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpar.planner.report.columns import INTERVAL
from jaxpar.planner.report.page import html_page, write_page
from jaxpar.planner.report.schedules import simulated
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.step_time.interval import PUBLISHED
from jaxpar.units import seconds
from tests.browser import browser
from tests.planner.spaces import model_of, search_of

HOSTILE = "</script><b>'&"


@pytest.fixture(scope="module")
def search() -> Search:
    return search_of(model_of(data={"batch_size": 64}), pipe=4)


@pytest.fixture(scope="module")
def plans(search: Search) -> list[Planned]:
    return search.best(5)[:3]


@pytest.fixture(scope="module")
def page(search: Search, plans: list[Planned]) -> str:
    return html_page(plans, search.evaluated, search.timer)


def test_the_table_has_every_layout_with_its_interval_and_numbers_to_sort_by(
    page: str, search: Search, plans: list[Planned]
) -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.S)
    heads = re.findall(r"<th[^>]*>(.*?)</th>", rows[0])
    cells = [dict(zip(heads, re.findall(r"<td([^>]*)>(.*?)</td>", row), strict=True)) for row in rows[1:]]
    assert len(cells) == len({one.layout for one in search.evaluated} | {one.candidate.layout for one in plans})
    assert [one[""][1] for one in cells[:4]] == ["1", "2", "3", ""]
    order = [float(re.findall(r'data-order="([^"]+)"', one["step"][0])[0]) for one in cells]
    assert order[:3] == [one.candidate.seconds for one in plans]
    assert order[3:] == sorted(order[3:])
    assert "sortable" in page
    least, most = PUBLISHED.interval(order[0])
    assert cells[0][INTERVAL][1] == f"{seconds(least)} to {seconds(most)}"


def test_no_name_can_break_the_page_and_nothing_comes_from_elsewhere(search: Search, plans: list[Planned]) -> None:
    config = plans[0].config
    named = replace(plans[0], config=replace(config, run=replace(config.run, name=HOSTILE)))
    page = html_page([named], search.evaluated, search.timer)
    assert HOSTILE not in page
    assert f"<title>{html.escape(HOSTILE).replace('&#x27;', '&#39;')}" in page
    assert page.replace("http://www.w3.org/2000/svg", "").count("://") == 0


def test_the_schedule_has_the_predicted_time_of_the_pipeline(search: Search, plans: list[Planned]) -> None:
    """Of short pipelines, which are drawn whole, the makespan is the step's ideal and its bubble."""
    time = plans[0].candidate.time
    found = simulated(plans[0], search.timer)
    assert found is not None and found.schedule.microbatches == plans[0].plan.microbatches
    assert float(found.bubble) == pytest.approx(time.breakdown["bubble"], rel=0.05)
    assert float(found.makespan) < time.seconds


@pytest.mark.long
def test_a_browser_sorts_colors_and_describes(search: Search, plans: list[Planned], tmp_path: Path) -> None:
    page = tmp_path / "plans.html"
    write_page(page, plans, search.evaluated, search.timer)
    with browser() as shown:
        shown.open(page)
        first = "document.querySelector('table.sortable tbody tr').cells"
        memory = (
            "[...document.querySelectorAll('table.sortable tbody tr')].map(row => Number(row.cells[6].dataset.order))"
        )
        assert shown.read(f"{first}[0].textContent") == "1"
        shown.click("table.sortable th:nth-child(7) button")
        assert shown.read(memory) == sorted(shown.read(memory))
        assert shown.count("#plot .point.hue0") > 0
        shown.choose("#by", "microbatch")
        assert shown.text("#keys").split() == sorted(shown.text("#keys").split(), key=int)
        shown.hover("#plot .point.plan")
        assert "MFU" in shown.text("#tip")
        fill = "getComputedStyle(document.querySelector('.schedule .F0-{} path')).fill"
        found = simulated(plans[0], search.timer)
        assert found is not None
        assert shown.read(fill.format(found.schedule.virtual_stages)) == "rgb(26, 110, 162)"
        shown.screenshot(tmp_path / "plans.png", whole=True)
        assert shown.console == []
        assert shown.requests == []
