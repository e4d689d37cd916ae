"""Templates of pages: what is shown is escaped, and the content policy allows what was written and nothing else."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import jinja2
import pytest

import jaxpar
from jaxpar.pages.render import Cell, Table, _environment, page, render

PACKAGE = Path(jaxpar.__file__).parent
TEMPLATES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".html", ".svg", ".css"))
HOSTILE = "</script><b onclick='x'>&\"{{ 1 }}"


def shown(of: Table, data: dict[str, dict[str, object]] | None = None) -> str:
    """A page with one table."""
    return page(
        "compiler/report/page.html", HOSTILE, scripts=["pages/table.js"], data=data, mesh="", verdict="", compiled="",
        report=dict(devices=1, gpu=HOSTILE, fits=True, notes=[HOSTILE]), cards=[(HOSTILE, HOSTILE)], memory=MEMORY,
        turn="", layers=[], layer_colors={}, tables={"Memory per GPU at the peak": of},
    )  # fmt: skip


MEMORY = dict(
    width=1, height=1, left=0, right=1, top=0, bottom=1, loops=[], areas=[], ticks=[], capacity=None, peak=0, highest=0,
    peak_text="", colors={HOSTILE: "#fff"},
)  # fmt: skip


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_template_escapes_and_refuses_names_that_are_not_there(path: Path) -> None:
    template = _environment().get_template(str(path.relative_to(PACKAGE)))
    assert template.environment.autoescape is True
    assert template.environment.undefined is jinja2.StrictUndefined
    assert "|safe" not in path.read_text().replace(" ", "")


UNESCAPED = re.compile(
    r"\bMarkup\(|\bMarkup\b *,|\| *safe\b|jinja2\.Template\(|(?<!class )\bEnvironment\(|\{%-? *autoescape"
    r"|autoescape(?! = |=True)"
)
"""What makes markup of text, or could: in one file each is allowed, because what it takes was written here."""


def test_text_is_made_markup_in_one_file_alone() -> None:
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".html", ".svg", ".css", ".js")]
    found = {str(path.relative_to(PACKAGE)) for path in sources if UNESCAPED.search(path.read_text())}
    assert found == {"pages/render.py"}


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("pages/frame.html")


def test_nothing_that_is_shown_can_become_markup() -> None:
    text = shown(Table([HOSTILE], [[HOSTILE], [Cell(HOSTILE, hot=True, order=1.5)]]), {"data": {"text": HOSTILE}})
    assert "<b onclick" not in text
    assert html.escape(HOSTILE).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in text
    assert f'class=" hot" data-order="1.5">{html.escape(HOSTILE)[:10]}' in text
    embedded = text.split('id="data">')[1].split("</script>")[0]
    assert json.loads(embedded) == {"text": HOSTILE}


def test_the_policy_allows_the_styles_and_scripts_of_the_page_alone() -> None:
    text = shown(Table([], []))
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]+)"', text)[0])
    found = dict(part.split(" ", 1) for part in policy.split("; "))
    digest = lambda one: f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
    styles, scripts = re.findall(r"<style>(.*?)</style>", text, re.S), re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(styles) == len(scripts) == 1
    assert found["default-src"] == "'none'"
    assert found["style-src"] == digest(styles[0])
    assert found["script-src"] == digest(scripts[0])
    assert "unsafe" not in policy
    assert not re.search(r"<[^>]+ style=", text), "a style attribute would not be applied"


def test_a_table_shows_itself_in_a_notebook() -> None:
    assert '<td class="">1 &lt; 2</td>' in Table(["a"], [["1 < 2"]])._repr_html_()
