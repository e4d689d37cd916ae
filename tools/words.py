"""Print and check counts of names, pages, decisions and files: `python tools/words.py`, part of `make lint`.

Words of the table in CONTRIBUTING.md may only become fewer in names and docstrings: a count above its limit fails and
lists the files with the most; a count below it prints the new limit to write here. Pages and decisions that are too
long, and folders with too many files, fail. Lines and words in all are printed only.
"""

from __future__ import annotations

import ast
import collections
import pathlib
import re
import sys

FOLDERS = ("jaxpar", "pallas_kernels")
FIRST_WORDS = "docstrings that begin with Of, Those, That of, What or Which"
FRAGMENTS = "docstrings that begin with How, Where, By, For, From, In, As, With, Like or Why"
LIMITS = {
    "own": 90,
    "found": 3,
    "given": 37,
    "counts": 108,
    "whole": 35,
    "kept": 55,
    "ends": 42,
    "codes": 4,
    "unseen": 0,
    "held": 50,
    "place": 42,
    "number": 280,
    "seen": 106,
    "filed": 2,
    "away": 5,
    "sink": 0,
    "verb": 0,
    "door": 0,
    "front": 0,
    "lookout": 0,
    "residency": 30,
    "wire": 61,
    "counted": 94,
    "heldout": 0,
    "secondary": 0,
    FIRST_WORDS: 0,
    FRAGMENTS: 76,
}
"""Largest number of occurrences of each word in identifiers, split at underscores, and of such docstrings."""

PAGE_WORDS = 1500
"""Largest number of words in a page, as `wc -w` counts."""
GENERATED = {"docs/configuration.md", "docs/commands.md", "docs/families.md"}
DECISIONS = "docs/decisions.md"
DECISION_COUNT, DECISION_LINES = 40, 15
FOLDER_FILES = 16
"""Largest number of Python files in a folder of `FOLDERS`, `__init__.py` apart."""
LINES_OF = (*FOLDERS, "tests", "benchmarks", "tools")

_DOCSTRING = re.compile(r'"""(Of|Those|That of|What|Which) ')
_FRAGMENT = re.compile(r'"""(How|Where|By|For|From|In|As|With|Like|Why) ')


def words(text: str) -> collections.Counter[str]:
    """Occurrences of the words of `LIMITS` in the identifiers of a file, and its docstrings with such first words."""
    counts: collections.Counter[str] = collections.Counter()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "arg", "attr", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                counts.update(word for word in name.lower().strip("_").split("_") if word in LIMITS)
    counts[FIRST_WORDS] = len(_DOCSTRING.findall(text))
    counts[FRAGMENTS] = len(_FRAGMENT.findall(text))
    return counts


def word_failures(root: pathlib.Path) -> list[str]:
    """Words and openings of docstrings with more occurrences than their limit; prints those with fewer."""
    files = {path: words(path.read_text()) for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))}
    totals = {word: sum(counts[word] for counts in files.values()) for word in LIMITS}
    print(
        "words of the table in names:",
        sum(totals.values()),
        "in all;",
        ", ".join(f"{w} {n}" for w, n in totals.items()),
    )
    failures = []
    for word, limit in LIMITS.items():
        if totals[word] > limit:
            most = sorted(files, key=lambda path: -files[path][word])[:5]
            where = ", ".join(f"{path.relative_to(root)} {files[path][word]}" for path in most)
            failures.append(f"{word}: {totals[word]}, above the limit of {limit}; see CONTRIBUTING.md: {where}")
        elif totals[word] < limit:
            print(f"{word}: {totals[word]}; lower its limit of {limit} in tools/words.py")
    return failures


def page_failures(root: pathlib.Path) -> list[str]:
    """Pages and decisions that are too long; prints the words of all."""
    pages = {str(path.relative_to(root)): path for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]}
    lengths = {name: len(path.read_text().split()) for name, path in pages.items() if name not in GENERATED}
    long = [name for name, length in lengths.items() if length > PAGE_WORDS and name != DECISIONS]
    decisions = [
        len(text.partition("\n## ")[0].strip().splitlines()) - 1
        for text in (root / DECISIONS).read_text().split("\n### ")[1:]
    ]
    long_decisions = sum(lines > DECISION_LINES for lines in decisions)
    print(
        f"pages: {sum(lengths.values())} words in {len(lengths)}, generated ones apart; {len(long)} above {PAGE_WORDS}"
    )
    print(f"decisions: {len(decisions)}, of which {long_decisions} have more than {DECISION_LINES} lines")
    failures = [f"{name}: {lengths[name]} words, above the limit of {PAGE_WORDS}" for name in long]
    if len(decisions) > DECISION_COUNT or long_decisions:
        failures.append(f"{DECISIONS}: at most {DECISION_COUNT} decisions, none above {DECISION_LINES} lines")
    return failures


def folder_failures(root: pathlib.Path) -> list[str]:
    """Folders with too many files; prints lines and the fullest folder of each package."""
    failures = []
    for package in LINES_OF:
        files = sorted((root / package).rglob("*.py"))
        folders = collections.Counter(path.parent for path in files if path.name != "__init__.py")
        (fullest, most), *_ = folders.most_common(1)
        lines = sum(len(path.read_text().splitlines()) for path in files)
        print(
            f"{package}: {lines} lines in {len(files)} files, at most {most} in a folder ({fullest.relative_to(root)})"
        )
        if package in FOLDERS and most > FOLDER_FILES:
            failures.append(f"{fullest.relative_to(root)}: {most} files, above the limit of {FOLDER_FILES}")
    return failures


def main() -> int:
    """Print all counts, and last what fails; returns 1 if anything does."""
    root = pathlib.Path(__file__).parents[1]
    failures = [*word_failures(root), *page_failures(root), *folder_failures(root)]
    for failure in failures:
        print(f"tools/words.py: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
