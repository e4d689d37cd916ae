"""Intervals are wider where one compiled program alone shows how long messages are waited for."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log

import pytest

from jaxpar.cost.hardware_model import HOPPER
from jaxpar.planner.evidence.verified import judged
from jaxpar.planner.layout import Layout
from jaxpar.planner.planning import anchored
from jaxpar.planner.report.document import planned_file
from jaxpar.planner.report.page import html_page
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.share_spread import share_spread
from jaxpar.planner.step_time.exposed import Exposed
from jaxpar.planner.step_time.interval import KNOWN, ONE_PROGRAM, Spread
from tests.planner.spaces import model_of, search_of

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


def test_a_program_of_the_layout_itself_ends_it(slow: Search):
    """Its waiting is read, not predicted: with `--verify`."""
    one = judged(slow.best(1)[0], HOPPER, 1 << 30, True, [])
    before, after = one.predicted.spread, one.planned.spread
    assert before is not None and after is not None and before.shares > 0.0 == after.shares
    assert planned_file(one.planned, "h800:4x8").predicted["of_one_program"] == []
