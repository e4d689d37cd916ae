"""Renders the templates of the package; what a page shows is escaped, and its browser may not use a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from jaxpar.pages.palette import THEME

GENERATOR = Markup('<meta name="generator" content="jaxpar">')
"""Marks a page as written by jaxpar."""


class Cell(str):
    """Text of a table's cell."""

    order: float | None
    """Number by which a click on the column's head sorts; None sorts by the text."""
    hot: bool
    """Whether it is shown in red."""

    def __new__(cls, text: str, *, order: float | None = None, hot: bool = False) -> Cell:
        cell = super().__new__(cls, text)
        cell.order, cell.hot = order, hot
        return cell


class Table(NamedTuple):
    """A table of plain texts."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    """Columns that are aligned right."""
    kind: str = ""
    """CSS class of the table; `sortable` sorts by a click on a column's head."""

    def _repr_html_(self) -> str:
        """Returns the table as HTML, for notebooks."""
        return _environment().get_template("pages/parts.html").module.table(self)  # pyright: ignore


def template(text: str) -> Template:
    """A template from outside the package, which may extend those of it."""
    return _environment().from_string(text)


def render(template: str | Template, **values: object) -> Markup:
    """A template, one of the package by its path in it, as markup that is not escaped again."""
    return Markup(_environment().get_template(template).render(values))


def page(
    template: str | Template,
    title: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Mapping[str, object]] | None = None,
    **values: object,
) -> str:
    """A whole page.

    Args:
        template: extends `pages/frame.html`.
        title: plain text.
        styles: templates of style sheets, added to the common one.
        scripts: files of JavaScript, which run in order once the body is loaded.
        data: JSON values by the id of the element in which the scripts find them.
        values: for `template` and `styles`.
    """
    style = "".join(render(name, **values) for name in ("pages/page.css", *styles))
    texts = [_source(name) for name in scripts]
    return str(
        render(
            template, title=title, policy=_policy(style, texts), style=Markup(style), scripts=[*map(Markup, texts)],
            data=data or {}, **values,
        )
    )  # fmt: skip


def _policy(style: str, scripts: Sequence[str]) -> str:
    """The content policy of every page: the browser takes nothing but what was written, and asks for nothing."""
    allowed = " ".join(map(_digest, scripts)) or "'none'"
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {allowed}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _source(name: str) -> str:
    """A file as it is."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("jaxpar", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.globals |= {"theme": THEME, "generator": GENERATOR}
    return made
