"""The terminal: lines that are not wrapped, and tables of numbers."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.config.spelling import printable

PLAIN_WIDTH = 160
"""Columns of a plan where there is no terminal: those of its widest table."""
INSPECT_WIDTH = 140
"""The same of a compiled program."""


def screen(width: int = PLAIN_WIDTH) -> Console:
    """The terminal, or plain text of a fixed width."""
    console = Console(markup=False)
    return console if console.is_terminal else Console(width=width, markup=False)


def print_lines(console: Console, *texts: str, style: str = "", title: str | None = None) -> None:
    """Print lines as they are, below a title indented; no control character in them reaches the screen."""
    if title is not None:
        print_lines(console, title, style="bold")
    for text in texts:
        console.print(Text(printable(text if title is None else f"  {text}"), style=style), soft_wrap=True)


def table(heads: Collection[str], left: Collection[str], title: str | None = None) -> Table:
    """A table without rows; the columns of `left` are aligned left, the others right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for head in heads:
        made.add_column(head, justify="left" if head in left else "right", overflow="fold")
    return made
