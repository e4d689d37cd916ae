"""Intervals are wider where one compiled program alone shows how long messages are waited for."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.planner.compiled import of_one_program, share_errors
from benchmarks.planner.tables import ONE_PROGRAM_ROW
from jaxpar.planner.layout import Layout
from jaxpar.planner.planning import anchored
from jaxpar.planner.report.document import planned_file
from jaxpar.planner.report.page import html_page
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.share_spread import share_spread
from jaxpar.planner.step_time.exposed import Exposed, read_programs
from jaxpar.planner.step_time.interval import KNOWN, ONE_PROGRAM, Spread
from tests.planner.spaces import model_of, search_of

PAGE = Path(__file__).parents[3] / "docs" / "planner.md"
SHARDED = Layout(fsdp=32, zero=3, remat="none")


def on(cluster: str) -> Search:
    fixed = {"pipe": 1, "context": 1, "tensor": 1, "zero": 3, "replica": 1, "expert": 1, "remat": "none"}
    return search_of(model_of(data={"batch_size": 64}), cluster, None, offload="none", **fixed)


@pytest.fixture(scope="module")
def slow() -> Search:
    """A network for which one program of ZeRO-3 was compiled; for a fast one there are three."""
    return on("h800:4x8")


def test_it_is_what_the_step_changes_by_when_the_shares_of_the_program_move(slow: Search):
    """By the seconds that the messages need, worked out from two other changes of the shares."""
    timer = slow.timer
    at = lambda by: timer.changed((frozenset({"gathers", "scatters"}), by)).step(SHARDED).seconds
    assert at(0.0) == timer.step(SHARDED).seconds
    each = (at(0.1) - at(0.0)) / 0.1
    assert each > 0
    wanted = log((at(0.0) + ONE_PROGRAM * each) / (at(0.0) - min(ONE_PROGRAM, 0.238) * each)) / 2
    assert share_spread(timer, SHARDED) == pytest.approx(wanted, rel=0.15)


def test_a_class_with_several_programs_has_none(slow: Search):
    fast = on("h100:4x8")
    assert share_spread(fast.timer, SHARDED) == 0.0 < share_spread(slow.timer, SHARDED)


def test_shares_stay_between_nothing_and_all():
    least = Exposed(0.1, 0.9, 1.0, 0.5).moved((frozenset({"gathers", "scatters", "sums"}), 0.3))
    assert least == Exposed(0.4, 1.0, 1.0, 0.5)
    assert Exposed(0.1).moved((frozenset({"gathers"}), -0.3)).gather == 0.0


def test_plans_have_it_in_their_interval_their_file_and_their_page(slow: Search):
    planned = slow.best(1)[0]
    spread, seconds = planned.spread, planned.candidate.seconds
    assert spread is not None and spread.shares == share_spread(slow.timer, planned.candidate.layout) > 0
    assert width(spread) > 1.05 * width(KNOWN)
    written = planned_file(planned, "h800:4x8").predicted
    assert written["interval_s"] == list(spread.interval(seconds)) != list(KNOWN.interval(seconds))
    assert written["of_one_program"] == ["gathers", "scatters"]
    bare = replace(planned, spread=KNOWN)
    pages = [html_page([one], slow.evaluated, slow.timer) for one in (planned, bare)]
    assert cells(pages[0])[0] != cells(pages[1])[0]


def cells(page: str) -> list[str]:
    return re.findall(r"[\d.,]+ m?s to [\d.,]+ m?s", page)


def width(spread: Spread) -> float:
    return log(spread.interval(1.0)[1])


def test_runs_that_were_measured_leave_it(slow: Search):
    planned = slow.best(1)[0]
    after = anchored(planned, KNOWN.measured([0.1, 0.12])).spread
    assert after is not None and planned.spread is not None and after.shares == planned.spread.shares


def test_shares_of_left_out_programs_are_inside_as_often_as_intervals_say():
    """Each program of a class with several, beside the others; a narrower spread would hold too few."""
    errors, reach = share_errors(read_programs()), KNOWN.quantile * ONE_PROGRAM
    inside = lambda reach: fmean(abs(error) <= reach for error in errors)
    assert len(errors) >= 20 and 0.8 <= inside(reach) <= 0.9
    assert inside(0.98 * reach) < 0.8
    assert of_one_program(read_programs()) == pytest.approx(ONE_PROGRAM, abs=1e-3)


def test_the_table_of_parameters_has_it():
    assert ONE_PROGRAM_ROW in PAGE.read_text()
    assert f"{ONE_PROGRAM:.3g}" in ONE_PROGRAM_ROW


def test_systems_that_were_left_out_are_inside_their_intervals_as_before():
    """Published systems take no shares from compiled programs: of them 70 to 90% are inside, in the page's table."""
    (mean,) = re.findall(r"\| \*\*mean over sources\*\* \|((?: \d+% \|){6})", PAGE.read_text())
    inside = [float(cell.strip(" %")) for cell in mean.split("|")[:4]]
    assert all(70 <= share <= 90 for share in inside)
