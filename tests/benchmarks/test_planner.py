"""The table of the planner's memory has its place in docs/planner.md, and is put there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.planner.leave_out import anchored
from benchmarks.planner.memory import BEGIN, END, PAGE, with_table
from tests.sentences import refused


def test_the_table_is_put_between_the_marks_of_the_page_and_again_there():
    page = PAGE.read_text()
    once = with_table(page, ["| a |", "|---|", "| 1 |"])
    assert once.startswith(page.split(BEGIN)[0]) and once.endswith(page.split(END)[1])
    assert f"{BEGIN}\n\n| a |\n|---|\n| 1 |\n\n{END}" in once
    assert with_table(with_table(page, ["| older |"]), ["| a |", "|---|", "| 1 |"]) == once


@pytest.mark.parametrize("page", ["none", BEGIN, END + BEGIN, BEGIN + END + BEGIN + END])
def test_a_page_without_a_place_is_a_sentence(page: str):
    with refused("planner.md", BEGIN, END, "once"):
        with_table(page, [])


def test_a_measured_run_corrects_those_of_its_own_software_alone():
    """Two kinds of software in one source, each off by a factor of its own: an anchor halves the error of its kind, and
    does not touch the other's."""
    judged: Any = lambda software, *errors: [
        SimpleNamespace(run=SimpleNamespace(software=software), error=error) for error in errors
    ]
    others = {"b": judged("x", 0.1, 0.2, 0.3), "c": judged("x", -0.1, -0.2, -0.3)}
    found = anchored({"a": [*judged("slow", 1.0, 1.0), *judged("fast", -0.5, -0.5)], **others})["a"]
    assert len(found) == 4, "each run beside the other of its kind"
    assert all(0 < error < 1.0 for error in found[:2]) and all(-0.5 < error < 0 for error in found[2:])
    assert "a" not in anchored({"a": [*judged("slow", 1.0), *judged("fast", -0.5)], **others})
