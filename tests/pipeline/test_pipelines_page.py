"""docs/pipelines.md and docs/schedules.md: pictures are what the tool draws today, and commands run."""

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


def test_commands_of_the_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(command) for command in re.findall(r"^    \$ (.*)$", PAGE, re.MULTILINE)]
    assert len(commands) >= 4
    for command in commands:
        if command[0] in ("cat", "sed"):
            subprocess.run(command, check=True)
            continue
        assert command[:3] == ["python", "-m", "jaxpar.schedule"]
        status = main(command[3:])
        out, errors = capfd.readouterr()
        known = "interleaved" if "--compare" in command else "rank 0"
        assert (status == 0 and known in out) or errors.startswith("jaxpar: "), command
