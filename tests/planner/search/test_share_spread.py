"""Intervals are wider where one compiled program alone, or those of other GPUs, show how long messages are waited
for."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log

import pytest

from benchmarks.planner.compiled import CONFIGS
from jaxpar.config import load_config
from jaxpar.cost.hardware_model import HOPPER
from jaxpar.planner.layout import Layout
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.planning import anchored, planned_config
from jaxpar.planner.report.document import planned_file
from jaxpar.planner.report.page import html_page
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.share_spread import share_spread
from jaxpar.planner.search.space import Space
from jaxpar.planner.step_time.exposed import Exposed, exposed, uncertain_shares
from jaxpar.planner.step_time.interval import KNOWN, ONE_PROGRAM, Spread
from jaxpar.planner.verified import judged
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
    shares = exposed(SHARDED, slow.space.cluster)
    less = sum(min(ONE_PROGRAM, own) for own in (shares.gather, shares.scatter)) / 2
    wanted = log((at(0.0) + ONE_PROGRAM * each) / (at(0.0) - less * each)) / 2
    assert share_spread(timer, SHARDED) == pytest.approx(wanted, rel=0.15)


def test_a_class_with_several_programs_has_none(slow: Search):
    fast = on("h100:4x8")
    assert share_spread(fast.timer, SHARDED) == 0.0 < share_spread(slow.timer, SHARDED)


def test_programs_of_other_gpus_are_no_better_evidence_than_one_of_the_layouts_own():
    """Of pipelines with context ranks two programs on H100s stand for an A100, and it has as wide an interval as where
    one program stands for it."""
    ampere = on("a100-80:4x8")
    context = Layout(fsdp=16, context=2, zero=3, remat="none")
    found = uncertain_shares(context, ampere.space.cluster)
    assert any(len(own) > 1 for own in found.values())
    assert share_spread(ampere.timer, context) > 0.5 * share_spread(ampere.timer, SHARDED) > 0.0


@pytest.mark.parametrize("cluster", ["h800:4x8", "a100-80:4x8"])
def test_replicas_do_not_come_first_because_they_were_not_compiled(cluster: str):
    """Sums over replicas beside the backward were compiled on H100s with a fast network alone."""
    config = load_config(CONFIGS / "llama3_8b.yaml", ["data.batch_size=64"])
    fixed = {"pipe": "1", "context": "1", "tensor": "1", "expert": "1", "offload": "none", "zero": "3"}
    timed = lambda replica: Search(Space(planned_config(config), named_cluster(cluster), fixed | {"replica": replica}))
    sharded, replicas = (timed(number).best(1)[0].candidate for number in ("1", "2"))
    assert (sharded.layout.fsdp, replicas.layout.fsdp) == (32, 16)
    assert sharded.seconds < replicas.seconds


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
