"""The time of a step by part, as text."""

from __future__ import annotations

from rich.console import Console

from jaxpar.planner.report.text import print_parts


def test_parts_of_a_step_are_printed_without_those_that_sums_round_to():
    console = Console(width=80, record=True)
    print_parts({"launches": 4.2e-15, "data": -1e-16, "attention": 2.36, "matmuls": 16.4}, 54.7, console)
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines] == ["matmuls", "attention"]
    assert lines[0].split()[1:4] == ["16.4", "s", "30.0%"]
