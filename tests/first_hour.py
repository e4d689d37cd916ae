"""Types what the README and the pages say, from top to bottom, in a fresh clone, and looks for what they print.

    python tests/first_hour.py              # every page that has marked blocks
    python tests/first_hour.py README.md

A page marks what can be run with a comment, which readers do not see:

    <!-- run -->            the next block, or the commands in the next table, run in order; in a block with lines that
                            begin with "$ " these are the commands, and the others what they print
    <!-- run: --set a.b=1 -->   the same, each training command with these arguments besides
    <!-- refused: ... -->   the same for commands that end with exit code 2
    <!-- prints -->         the next block is what the last command printed
    <!-- given: ... -->     a command that readers do not see, for what the page takes as there

Of a block that is printed, the first word of each line has to be in the output, and a line without words whole.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-test"
MARK = re.compile(r"<!-- (run|refused|prints|given)(?:: (.*?))? -->")
WORD = r"\b(?![KMGT]iB)[A-Za-z_][\w./-]*\w\w"
TRAINS = ("jaxpar.train ", "make train")
LIMIT_S = 1200


@dataclass(frozen=True)
class Step:
    """A command of a page, and what the page states that it prints."""

    place: str
    command: str
    status: int = 0
    """The exit code that is expected."""
    printed: str | None = None


def steps(name: str, text: str) -> Iterator[Step]:
    """The marked commands of a page, in order.

    Args:
        name: of the page, for messages.
        text: its Markdown.

    Raises:
        ValueError: a mark has no block, or a block has no command before it.
    """
    mark: re.Match[str] | None = None
    waiting: Step | None = None
    cells: list[str] | None = None
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        place = f"{name}:{token.map[0] + 1}" if token.map else name
        if token.type == "html_block" and (found := MARK.match(token.content)):
            if mark:
                raise ValueError(f"{place}: {mark[0]} has no block")
            if found[1] != "given":
                mark = found
                continue
            if waiting is not None:
                yield waiting
                waiting = None
            yield Step(place, found[2])
        elif mark and token.type in ("code_block", "fence"):
            if mark[1] == "prints":
                if waiting is None:
                    raise ValueError(f"{place}: no command before what is printed")
                yield replace(waiting, printed=token.content)
                waiting = None
            else:
                for command, printed in _commands(re.sub(r"\\\n\s*", "", token.content)):
                    if waiting is not None:
                        yield waiting
                    waiting = replace(_step(place, command, mark), printed=printed)
            mark = None
        elif mark and token.type == "table_open":
            cells = []
        elif cells is not None and token.type == "tr_open":
            cells.append("")
        elif cells and token.type == "inline":
            codes = [c.content for c in token.children or [] if c.type == "code_inline"]
            cells[-1] = "\n".join(filter(None, [cells[-1], *codes]))
        elif cells is not None and mark and token.type == "table_close":
            if waiting is not None:
                yield waiting
                waiting = None
            for command in (line for cell in cells for line in cell.splitlines() if " " in line):
                yield _step(place, command, mark)
            cells = mark = None
    if mark:
        raise ValueError(f"{name}: {mark[0]} has no block")
    if waiting is not None:
        yield waiting


def _commands(block: str) -> Iterator[tuple[str, str | None]]:
    """The commands of a block, each with what the block states that it prints."""
    lines = [line for line in block.splitlines() if line.strip()]
    if not any(line.startswith("$ ") for line in lines):
        yield from ((line, None) for line in lines)
        return
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start], "\n".join(lines[start + 1 : end]) or None


def _step(place: str, line: str, mark: re.Match[str]) -> Step:
    return Step(place, _command(line, mark[2]), 2 if mark[1] == "refused" else 0)


def _command(line: str, arguments: str | None) -> str:
    line = re.sub(r"\s+#\s.*", "", line.strip().removeprefix("$ "))
    if not arguments or not any(name in line for name in TRAINS):
        return line
    if not line.startswith("make "):
        return f"{line} {arguments}"
    given = re.search(r"ARGS='([^']*)'", line)
    return line.replace(given[0], f"ARGS='{given[1]} {arguments}'") if given else f"{line} ARGS='{arguments}'"


def missing(expected: str, printed: str) -> list[str]:
    """The first words of a page's lines, and its lines without words, that a command did not print.

    Numbers with their units are no words. Lines of dots or bars are not compared. Raises `ValueError` where all are.
    """
    lines = [" ".join(line.split()) for line in expected.splitlines() if re.search(r"\w", line)]
    if expected and not lines:
        raise ValueError(f"nothing to compare in what is printed: {expected!r}")
    output = {*re.findall(WORD, printed), *(" ".join(line.split()) for line in printed.splitlines())}
    wanted = [next(iter(re.findall(WORD, line)), line) for line in lines]
    return [each for each in wanted if each not in output]


def clone(folder: Path) -> Path:
    """A fresh clone of what is committed; the environment of the tests serves as its `.venv`."""
    place = folder / "jaxpar"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)
    venv = place / ".venv"
    venv.mkdir()
    for part in ("bin", "lib"):
        (venv / part).symlink_to(ENVIRONMENT / part)
    shutil.copy(ENVIRONMENT / "pyvenv.cfg", venv)
    sum_of = ["bash", "-c", "cat pyproject.toml constraints.txt | cksum"]  # as in launch/setup.sh
    requirements = subprocess.run(sum_of, cwd=place, capture_output=True, text=True, check=True).stdout
    (venv / "installed").write_text(f"{place}\n[data] {requirements}")
    return place


def walk(page: str, place: Path) -> list[str]:
    """Run the steps of a page in a clone, and return what was wrong, each in one paragraph."""
    wrong = []
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
    environment |= {"PATH": f"{place / '.venv/bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(place)}
    environment |= {key: os.environ[key] for key in ("JAX_COMPILATION_CACHE_DIR",) if key in os.environ}
    for step in steps(page, (place / page).read_text()):
        print(f"{step.place}: {step.command}", flush=True)
        try:
            done = subprocess.run(
                ["bash", "-c", step.command], cwd=place, env=environment, stdin=subprocess.DEVNULL, timeout=LIMIT_S,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            wrong.append(f"{step.place}: `{step.command}` took longer than {LIMIT_S} s")
            continue
        if done.returncode != step.status:
            last = "\n".join(done.stdout.splitlines()[-15:])
            wrong.append(f"{step.place}: `{step.command}` ended with exit code {done.returncode}:\n{last}")
        elif lost := missing(step.printed or "", done.stdout):
            wrong.append(f"{step.place}: `{step.command}` does not print {', '.join(lost)}; it prints\n{done.stdout}")
    return wrong


def clean(place: Path) -> Path:
    """The clone without what an earlier page left in it: pages do not depend on each other."""
    subprocess.run(["git", "clean", "-fdxq", "-e", ".venv"], cwd=place, check=True)
    return place


def pages() -> list[str]:
    """The pages that have marked blocks."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in found if MARK.search(page.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="pages of the repository (default: all that have marked blocks)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = clone(Path(folder))
        asked = arguments.pages or pages()
        wrong = [problem for page in asked for problem in walk(page, clean(place))]
    print("\n\n".join(wrong) or "Every command worked and printed what its page says.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
