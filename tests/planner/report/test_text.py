"""The time of a step by part, as text."""

import pytest

from jaxpar.planner.report import words
from jaxpar.planner.report.screen import print_lines, screen


def test_names_of_a_file_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]):
    print_lines(screen(), *words.parts({"[/x]": 2.0, "[red]a\x1b[2J": 1.0}, 3.0))
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "[/x]" and second.split()[0] == r"[red]a\x1b[2J"
