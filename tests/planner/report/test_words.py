"""Words about layouts and steps."""

import pytest

from jaxpar.compiler.report.screen import print_lines, screen
from jaxpar.planner.report import words


def test_names_of_a_file_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(screen(), *words.parts({"[/x]": 2.0, "[red]a\x1b[2J": 1.0}, 3.0))
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "[/x]" and second.split()[0] == r"[red]a\x1b[2J"
