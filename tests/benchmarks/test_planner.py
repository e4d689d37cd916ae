"""The table of the planner's memory has its place in docs/planner.md, and is put there."""

from __future__ import annotations

import pytest

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
