"""Check that words of the table in CONTRIBUTING.md become fewer in names and docstrings: `python tools/words.py`.

A count above its limit fails and lists the files with the most; a count below it prints the new limit to write here.
"""

from __future__ import annotations

import ast
import collections
import pathlib
import re
import sys

FOLDERS = ("jaxpar", "pallas_kernels")
FIRST_WORDS = "docstrings that begin with Of, Those, That of, What or Which"
LIMITS = {
    "own": 217,
    "found": 209,
    "given": 129,
    "counts": 114,
    "whole": 142,
    "kept": 91,
    "ends": 118,
    "codes": 209,
    "unseen": 0,
    "held": 50,
    "place": 229,
    "number": 575,
    "seen": 113,
    "filed": 7,
    "away": 5,
    "sink": 0,
    "verb": 0,
    "door": 0,
    "front": 2,
    "lookout": 0,
    "residency": 30,
    "wire": 99,
    "counted": 176,
    FIRST_WORDS: 0,
}
"""Largest number of occurrences of each word in identifiers, split at underscores, and of such docstrings."""

_DOCSTRING = re.compile(r'"""(Of|Those|That of|What|Which) ')


def words(text: str) -> collections.Counter[str]:
    """Occurrences of the words of `LIMITS` in the identifiers of a file, and its docstrings with such first words."""
    counts: collections.Counter[str] = collections.Counter()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "arg", "attr", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                counts.update(word for word in name.lower().strip("_").split("_") if word in LIMITS)
    counts[FIRST_WORDS] = len(_DOCSTRING.findall(text))
    return counts


def main() -> int:
    """Print every count that differs from its limit; returns 1 if one is above it."""
    root = pathlib.Path(__file__).parents[1]
    files = {path: words(path.read_text()) for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))}
    failed = False
    for word, limit in LIMITS.items():
        total = sum(counts[word] for counts in files.values())
        if total > limit:
            failed = True
            most = sorted(files, key=lambda path: -files[path][word])[:5]
            where = ", ".join(f"{path.relative_to(root)} {files[path][word]}" for path in most)
            print(f"{word}: {total}, above the limit of {limit} in tools/words.py; see CONTRIBUTING.md: {where}")
        elif total < limit:
            print(f"{word}: {total}; lower its limit of {limit} in tools/words.py")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
