"""`tools/words.py` fails on what is above its limits, in a small tree."""

from pathlib import Path

import pytest

from tools import words


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree within all limits."""
    for folder in words.LINES_OF:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").write_text('"""A file."""\n')
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("word " * words.PAGE_WORDS)
    record = "\n### A decision\n\n" + "line\n" * (words.DECISION_LINES - 1)
    (tmp_path / "docs/decisions.md").write_text("# Decisions\n" + record * words.DECISION_COUNT)
    return tmp_path


def failures(root: Path) -> list[str]:
    return [*words.word_failures(root), *words.page_failures(root), *words.folder_failures(root)]


def test_a_tree_within_the_limits_passes(tree: Path):
    assert failures(tree) == []


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("README.md", "word", "README.md"),
        ("docs/decisions.md", "\n### One more\n\nline\n", "docs/decisions.md"),
        ("docs/decisions.md", "line\n", "docs/decisions.md"),
        ("jaxpar/one.py", "heldout = 1\n", "heldout"),
        ("pallas_kernels/one.py", 'def f():\n    """Of a thing."""\n', words.FIRST_WORDS),
    ],
)
def test_what_is_above_a_limit_is_named(tree: Path, file: str, text: str, named: str):
    with (tree / file).open("a") as stream:
        stream.write(text)
    (failure,) = failures(tree)
    assert failure.startswith(named)


def test_a_folder_with_too_many_files_is_named(tree: Path):
    for index in range(words.FOLDER_FILES):
        (tree / "jaxpar" / f"file{index}.py").write_text("")
    (failure,) = failures(tree)
    assert failure.startswith("jaxpar")
