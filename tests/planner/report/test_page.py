"""The page of a search: its plans and other layouts in a table and a picture."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpar.compiler.report.screen import print_lines, screen
from jaxpar.pages.units import seconds
from jaxpar.planner.report import words
from jaxpar.planner.report.page import html_page, scatter, write_page
from jaxpar.planner.report.words import INTERVAL
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.step_time.interval import PUBLISHED
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
    return html_page(plans, search.evaluated)


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
    page = html_page([named], search.evaluated)
    assert HOSTILE not in page
    assert f"<title>{html.escape(HOSTILE).replace('&#x27;', '&#39;')}" in page
    assert page.replace("http://www.w3.org/2000/svg", "").count("://") == 0


@pytest.mark.long
def test_a_browser_sorts(search: Search, plans: list[Planned], tmp_path: Path) -> None:
    page = tmp_path / "plans.html"
    write_page(page, plans, search.evaluated)
    with browser() as shown:
        shown.open(page)
        first = "document.querySelector('table.sortable tbody tr').cells"
        memory = (
            "[...document.querySelectorAll('table.sortable tbody tr')].map(row => Number(row.cells[6].dataset.order))"
        )
        assert shown.read(f"{first}[0].textContent") == "1"
        shown.click("table.sortable th:nth-child(7) button")
        assert shown.read(memory) == sorted(shown.read(memory))
        assert shown.count("#plot .point.plan") == shown.count("#plot text.label") == 3
        shown.screenshot(tmp_path / "plans.png", whole=True)
        assert shown.console == []
        assert shown.requests == []


def test_axes_have_round_ticks_and_the_frontier_goes_along_the_best(plans: list[Planned]) -> None:
    best = plans[0].candidate
    half = best.memory._replace(saved_activations=0)
    slower = replace(best, time=replace(best.time, seconds=1.2 * best.seconds), memory=half)
    worse = replace(slower, memory=best.memory)
    far = replace(slower, time=replace(best.time, seconds=10 * best.seconds))
    shown = scatter([best, slower, worse, far], 1, plans[0].usable)
    (x0, y0), (x1, y1), _ = [(x, y) for x, y, _, _ in shown["points"][::-1]]
    assert [plan for _, _, plan, _ in shown["points"]] == [None, None, 1], "what takes ten times as long is not drawn"
    assert shown["frontier"] == f"M{x0} {y0}H{x1}V{y1}"
    assert all(re.fullmatch(r"[\d.,]+ (s|ms|us)", text) for _, text in shown["x_ticks"])
    assert len(shown["x_ticks"]) >= 3
    assert all(re.fullmatch(r"\d+(\.\d)?", text) for _, text in shown["y_ticks"])


def test_names_of_a_file_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]):
    print_lines(screen(), *words.parts({"[/x]": 2.0, "[red]a\x1b[2J": 1.0}, 3.0))
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "[/x]" and second.split()[0] == r"[red]a\x1b[2J"
