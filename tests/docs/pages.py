"""The code of a page, each with its place. markdown-it-py, which parses pages, comes with rich."""

import json
import re
from dataclasses import dataclass, field

from markdown_it import MarkdownIt

MARKDOWN = MarkdownIt("commonmark").enable("table")
PATH = r"(?<![\w./:-])[a-z]\w*/[\w./-]*\.[a-z]\w*"
"""A file with its folder, in prose."""


@dataclass
class Page:
    """A page, as a check needs to know it; a place is `docs/data.md:12`, where its paragraph begins."""

    name: str
    """Its path in the repository."""
    code: list[tuple[str, str]] = field(default_factory=list)
    """Place and text of each code span, line of a code block, and path of a file in prose."""


def read_page(name: str, text: str) -> Page:
    """A page from the text of a Markdown file, or of a notebook."""
    page = Page(name)
    cells = json.loads(text)["cells"] if name.endswith(".ipynb") else [{"cell_type": "markdown", "source": [text]}]
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        place = f"{name}: cell {number}, line " if name.endswith(".ipynb") else f"{name}:"
        if cell["cell_type"] == "markdown":
            _read(page, source, place)
        else:
            page.code += [(f"{place}1", line) for line in _lines(source)]
    return page


def _read(page: Page, text: str, place: str) -> None:
    for token in MARKDOWN.parse(text):
        at = f"{place}{(token.map or [0])[0] + 1}"
        if token.type in ("code_block", "fence", "html_block"):
            page.code += [(at, line) for line in _lines(re.sub(r"<!--|-->|`", " ", token.content))]
        for child in token.children or []:
            if child.type == "code_inline":
                page.code.append((at, child.content))
            elif child.type == "text":
                page.code += [(at, path) for path in re.findall(PATH, child.content)]


def _lines(block: str) -> list[str]:
    """Lines of code, joined after a backslash and inside the parentheses of an import."""
    block = re.sub(r"\\\n", " ", block)
    joined = lambda match: f"import {' '.join(match[1].split()).rstrip(',')}"
    return re.sub(r"import \(([^)]*)\)", joined, block).split("\n")
