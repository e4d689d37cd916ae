"""`python -m jaxpar.report`, as a user types it."""

from pathlib import Path

import pytest

from jaxpar.report import main
from tests.observe.report.written_runs import write_run
from tests.sentences import refused_by_command


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs in the folder `runs`, which is named by its relative path."""
    for name in ("first", "second"):
        write_run(tmp_path / "runs" / name, steps=10)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_a_page_goes_into_the_runs_folder_and_again_over_itself(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["runs/first"]) == 0
        assert capsys.readouterr().out == "Page: runs/first/report.html\n"
    assert (runs / "first" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_two_runs_go_into_the_file_that_is_named(runs: Path) -> None:
    assert main(["runs/first", "runs/second", "--out", "both.html"]) == 0
    assert "<h1>first and second</h1>" in Path("both.html").read_text()


def test_half_a_surrogate_pair_is_written(runs: Path) -> None:
    with (runs / "first" / "events.jsonl").open("a") as file:
        file.write('{"event": "message", "text": "half \\ud83d"}\n')
    assert main(["runs/first"]) == 0
    assert b"half ?" in (runs / "first" / "report.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["runs/frist"], "runs/frist | first?"),
        (["runs/first/config.yaml"], "a file | folder of a run"),
        (["runs"], "first, second"),
        (["runs/first", "runs/first"], "runs/first | twice"),
        (["runs/first", "--out", "runs/second/config.yaml"], "config.yaml | not a page of jaxpar"),
        (["runs/first", "--out", "runs"], "--out runs | a folder | name of a file"),
        (["runs/first", "--out", "nowhere/page.html"], "nowhere does not exist"),
        (["runs/first", "--out", "/proc/page.html"], "--out /proc/page.html | cannot be written"),
    ],
)
def test_a_mistake_gets_one_sentence(runs: Path, arguments: list[str], parts: str, capsys):
    refused_by_command(main(arguments), *capsys.readouterr(), *parts.split(" | "))
