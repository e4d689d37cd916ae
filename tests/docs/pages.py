"""The code of a page, each with its place. markdown-it-py, which parses pages, comes with rich."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token

MARKDOWN = MarkdownIt("commonmark").enable("table")
PATH = r"(?<![\w./:-])[a-z]\w*/[\w./-]*\.[a-z]\w*"
"""A file with its folder, in prose."""


@dataclass(frozen=True)
class Code:
    """A code span, a line of a code block, or the path of a file in prose."""

    place: str
    """`docs/data.md:12`"""
    text: str
    before: tuple[str, ...] = ()
    """In a table, the code spans before it in its row."""


@dataclass
class Page:
    """What a check needs to know of a page."""

    name: str
    """Its path in the repository."""
    code: list[Code] = field(default_factory=list)


def read_page(name: str, text: str) -> Page:
    """A page from the text of a Markdown file, or of a notebook."""
    page = Page(name)
    if not name.endswith(".ipynb"):
        _read(page, text, f"{name}:")
        return page
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        source, place = "".join(cell["source"]), f"{name}: cell {number}, line "
        if cell["cell_type"] == "markdown":
            _read(page, source, place)
        else:
            _read_block(page, source, place, 1)
    return page


def _read(page: Page, text: str, place: str) -> None:
    lines = text.split("\n")
    row: int | None = None
    for token in MARKDOWN.parse(text):
        first, end = token.map or (0, 0)
        if token.type in ("tr_open", "tr_close"):
            row = len(page.code) if token.type == "tr_open" else None
        elif token.type in ("code_block", "fence"):
            _read_block(page, token.content, place, first + (2 if token.type == "fence" else 1))
        elif token.type == "html_block":
            _read_block(page, re.sub(r"<!--|-->|`", " ", token.content), place, first + 1)
        elif token.type == "inline":
            _read_inline(page, token.children or [], lines, (first, end), place, row)


def _read_inline(
    page: Page, children: Sequence[Token], lines: list[str], span: tuple[int, int], place: str, row: int | None
) -> None:
    """Code spans of a paragraph or a cell; `row` is the number of code spans before the row of the cell."""
    line, end = span

    def find(text: str) -> int:
        """The first line from the current one on that contains the text; the current one if none does."""
        return next((number for number in range(line, end) if text in lines[number]), line)

    for child in children:
        if child.type in ("softbreak", "hardbreak"):
            line += 1
        elif child.type == "code_inline":
            # Line breaks inside earlier spans are spaces in their content, so the span may start on a later line.
            line = find(f"`{child.content.split(' ')[0]}")
            before = () if row is None else tuple(code.text for code in page.code[row:])
            page.code.append(Code(f"{place}{line + 1}", child.content, before))
        elif child.type == "text":
            page.code += [Code(f"{place}{line + 1}", path) for path in re.findall(PATH, child.content)]


def _read_block(page: Page, text: str, place: str, first: int) -> None:
    """Lines of a code block, joined after a backslash and inside the parentheses of an import."""
    start, whole = first, ""
    for number, line in enumerate(text.split("\n"), first):
        whole, start = (f"{whole} {line}", start) if whole else (line, number)
        if whole.endswith("\\"):
            whole = whole[:-1]
        elif not re.search(r"\bfrom \S+ import \([^)]*$", whole):
            page.code.append(Code(f"{place}{start}", whole))
            whole = ""
