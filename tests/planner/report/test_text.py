"""The time of a step by part, as text."""

from __future__ import annotations

import pytest
from rich.console import Console

from jaxpar.planner.planning import screen
from jaxpar.planner.report.text import print_parts


def test_parts_of_a_step_are_printed_without_those_that_sums_round_to():
    console = Console(width=80, record=True)
    print_parts({"context": 4.2e-15, "data": -1e-16, "attention": 2.36, "matmuls": 16.4}, 54.7, console)
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines] == ["matmuls", "attention"]
    assert lines[0].split()[1:4] == ["16.4", "s", "30.0%"]


def test_names_of_a_file_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]):
    print_parts({"[/x]": 2.0, "[red]a\x1b[2J": 1.0}, 3.0, screen())
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "[/x]" and second.split()[0] == r"[red]a\x1b[2J"
