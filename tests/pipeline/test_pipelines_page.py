"""docs/pipelines.md and docs/schedules.md: pictures and printed output are what the tool makes today."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from jaxpar.schedule import main

REPOSITORY = Path(__file__).parents[2]
PAGES = ("pipelines.md", "schedules.md")
PAGE = "\n".join((REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
PICTURES = re.findall(r"^<!-- python -m jaxpar\.schedule (.+) --out (\S+) -->$", PAGE, re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Each command of the pages, with the text that stands under it, in their order."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in PAGE.splitlines():
        inside = line.startswith("    ") if line.strip() else inside
        if line.startswith("    $ "):
            found.append((line.removeprefix("    $ "), []))
        elif found and inside:
            found[-1][1].append(line.removeprefix("    "))
    return [(command, "\n".join(lines).strip("\n")) for command, lines in found]


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


@pytest.mark.parametrize(("arguments", "file"), PICTURES)
def test_a_picture_is_what_the_tool_draws(arguments: str, file: str, tmp_path: Path):
    drawn = tmp_path / "drawn.svg"
    assert main([*shlex.split(arguments), "--json", "--out", str(drawn)]) == 0
    again = f"python -m jaxpar.schedule {arguments} --out {file}"
    assert (REPOSITORY / file).read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8"), f"run {again}"


def test_every_picture_is_shown_and_every_file_is_a_picture_of_a_page():
    shown = lambda page: re.findall(r"^!\[[^]]+\]\((pictures/[^)]+)\)$", page, re.MULTILINE)
    assert [f"docs/{file}" for file in shown(PAGE)] == [file for _, file in PICTURES]
    docs = REPOSITORY / "docs"
    of_pages = {Path(file).name for page in docs.glob("*.md") for file in shown(page.read_text(encoding="utf-8"))}
    assert {path.name for path in (docs / "pictures").iterdir()} == of_pages


def test_commands_print_what_stands_under_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    checked = 0
    for command, text in commands():
        words = shlex.split(command)
        if words[:3] == ["python", "-m", "jaxpar.schedule"]:
            main(words[3:])
        else:
            assert words[0] in ("cat", "sed")
            subprocess.run(words, check=True)
        out, err = capfd.readouterr()
        if text:
            assert plain(out + err) == text, command
            checked += 1
    assert checked == 4
