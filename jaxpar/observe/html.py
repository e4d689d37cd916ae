"""HTML pages of one file each that need no network: the common parts of the reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

GENERATOR = '<meta name="generator" content="jaxpar">'
"""Marks a page as written by jaxpar."""

POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:\">"
)
"""Enforced by the browser: even a faulty page cannot access the network."""

_STYLE = Path(__file__).with_name("html.css")


class Hot(str):
    """Text of a cell that is shown in red."""


def document(
    title: str, body: str, *, style: str = "", script: str = "", data: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """A whole page.

    Args:
        title: Plain text.
        body: HTML.
        style: CSS added to the common style (`html.css`).
        script: JavaScript, which runs once the body is loaded.
        data: JSON values by the id of the element in which the script finds them.
    """
    embedded = "".join(_embedded(name, value) for name, value in (data or {}).items())
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{GENERATOR}'
        f'{POLICY}<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE.read_text()}{style}</style></head>"
        f"<body>{body}{embedded}<script>{script}</script></body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), kind: str = "") -> str:
    """A table of plain texts; columns `numbers` are aligned right, and `kind` is the table's class."""

    def cell(index: int, text: str, tag: str) -> str:
        classes = " ".join((["n"] if index in numbers else []) + (["hot"] if isinstance(text, Hot) else []))
        return f'<{tag} class="{classes}">{escape(text)}</{tag}>'

    def line(texts: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(cell(i, text, tag) for i, text in enumerate(texts))}</tr>"

    head, body = line(heads, "th"), "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def cards(shown: Iterable[tuple[str, str]]) -> str:
    """Cards with the main numbers, each above its name."""
    boxes = (f"<div class=card><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in shown)
    return f'<div class="cards">{"".join(boxes)}</div>'


def notes(texts: Iterable[str]) -> str:
    """Notes to read before the rest."""
    return "".join(f'<p class="note">{escape(text)}</p>' for text in texts)


def _embedded(name: str, value: Mapping[str, Any]) -> str:
    """A script element with JSON; `<` is escaped so that no text can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'
