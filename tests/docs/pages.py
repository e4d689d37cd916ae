"""The links, anchors and code of a page, each with its place. markdown-it-py, which parses pages, comes with rich."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

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


@dataclass(frozen=True)
class Link:
    """A link or an image."""

    place: str
    target: str


@dataclass
class Page:
    """What a check needs to know of a page."""

    name: str
    """Its path in the repository."""
    code: list[Code] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


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


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _read(page: Page, text: str, place: str) -> None:
    lines = text.split("\n")
    row: int | None = None
    heading = False
    for token in MARKDOWN.parse(text):
        first, end = token.map or (0, 0)
        if token.type in ("tr_open", "tr_close"):
            row = len(page.code) if token.type == "tr_open" else None
        elif token.type in ("code_block", "fence"):
            _read_block(page, token.content, place, first + (2 if token.type == "fence" else 1))
        elif token.type == "html_block":
            _read_html(page, token.content, f"{place}{first + 1}")
            _read_block(page, re.sub(r"<!--|-->|`", " ", token.content), place, first + 1)
        elif token.type == "inline":
            _read_inline(page, token.children or [], lines, (first, end), place, row)
            if heading:
                page.anchors.add(_unique(slug(_plain(token)), page.anchors))
        heading = token.type == "heading_open"


def _plain(heading: Token) -> str:
    return "".join(child.content for child in heading.children or [] if child.type in ("text", "code_inline"))


def _unique(anchor: str, used: set[str]) -> str:
    number, name = 0, anchor
    while name in used:
        number += 1
        name = f"{anchor}-{number}"
    return name


def _read_inline(
    page: Page, children: Sequence[Token], lines: list[str], span: tuple[int, int], place: str, row: int | None
) -> None:
    """Links and code spans of a paragraph or a cell; `row` is the number of code spans before the row of the cell."""
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
        elif child.type in ("link_open", "image"):
            target = str(child.attrs["href" if child.type == "link_open" else "src"])
            page.links.append(Link(f"{place}{find(target) + 1}", unquote(target)))
        elif child.type == "html_inline":
            _read_html(page, child.content, f"{place}{line + 1}")


def _read_html(page: Page, html: str, place: str) -> None:
    targets = re.findall(r"""<(?:a|img)\s[^>]*(?:href|src)=["']([^"']*)""", html)
    page.links += [Link(place, target) for target in targets]
    page.anchors |= set(re.findall(r"""<a\s[^>]*(?:id|name)=["']([^"']*)""", html))


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
