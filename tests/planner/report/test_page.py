"""The page of a search: its plans in a table and a picture, and their schedules in color."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from jaxpar.pages.labels import Box
from jaxpar.planner.report.columns import INTERVAL
from jaxpar.planner.report.page import html_page, write_page
from jaxpar.planner.report.scatter import scatter
from jaxpar.planner.report.schedules import MOST_ACTIONS, drawn_microbatches, simulated
from jaxpar.planner.search.candidate import Candidate, Planned
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


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("microbatches", [64, 1000, 4096])
def test_long_pipelines_are_drawn_shorter_by_whole_rounds(plans: list[Planned], ranks: int, microbatches: int) -> None:
    plan = replace(plans[0].plan, schedule="1f1b", virtual_stages=1, microbatches=microbatches)
    layout = replace(plans[0].candidate.layout, pipe=ranks)
    one = replace(plans[0], plan=plan, candidate=replace(plans[0].candidate, layout=layout))
    drawn = drawn_microbatches(one)
    assert 2 * ranks <= drawn + ranks and drawn <= microbatches and (microbatches - drawn) % ranks == 0
    assert 2 * ranks * drawn <= MOST_ACTIONS or drawn <= 3 * ranks


def close(best: Candidate, count: int) -> list[Candidate]:
    """Layouts that take nearly the same time and memory."""
    times = [replace(best.time, seconds=best.seconds * (1 + i / 2000)) for i in range(count)]
    return [replace(best, time=time) for time in times]


def test_labels_of_close_plans_do_not_overlap(plans: list[Planned]) -> None:
    layouts = close(plans[0].candidate, 8)
    labels = scatter(layouts, [""] * 8, 8, plans[0].usable)["labels"]
    boxes: list[Box] = [label["box"] for label in labels]
    assert len(boxes) == 8
    assert all(label["box"].x1 - label["box"].x0 > 5 * len(label["text"]) for label in labels), "wide enough to read"
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_axes_have_round_ticks_and_the_frontier_goes_along_the_best(plans: list[Planned]) -> None:
    best = plans[0].candidate
    half = best.memory._replace(saved_activations=0)
    slower = replace(best, time=replace(best.time, seconds=1.2 * best.seconds), memory=half)
    worse = replace(slower, memory=best.memory)
    far = replace(slower, time=replace(best.time, seconds=10 * best.seconds))
    shown = scatter([best, slower, worse, far], ["a", "b", "c", "d"], 1, plans[0].usable)
    assert [point[-1] for point in shown["points"]] == ["c", "b", "a"], "what takes ten times as long is not drawn"
    at = {name: (x, y) for x, y, _, _, name in shown["points"]}
    assert shown["frontier"] == f"M{at['a'][0]} {at['a'][1]}H{at['b'][0]}V{at['b'][1]}"
    assert all(re.fullmatch(r"[\d.,]+ (s|ms|us)", text) for _, text in shown["x_ticks"])
    assert len(shown["x_ticks"]) >= 3
    assert all(re.fullmatch(r"\d+(\.\d)?", text) for _, text in shown["y_ticks"])
