"""A real browser looks at the page of `python -m jaxpar.inspect`."""

import re
from pathlib import Path

import pytest

from jaxpar.compiler.report.page import html_page
from tests.browser import browser
from tests.compiler.inspected import hsdp


@pytest.mark.long
def test_the_page_states_what_is_under_the_pointer_and_asks_for_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(html_page(*hsdp()), encoding="utf-8")
    with browser() as shown:
        for dark in (False, True):
            shown.dark(dark)
            shown.open(page)
            assert shown.text("#readout") == ""
            shown.hover("svg.memory", part=0.5)
            printed = shown.text("#readout")
            assert re.search(r": [1-9]\d*\.\d\d MiB = optimizer [1-9]\.\d\d MiB \+ weights ", printed), printed
            assert shown.read("document.getElementById('cursor').style.visibility") == "visible"
            shown.screenshot(tmp_path / f"{'dark' if dark else 'light'}.png", whole=True)
        shown.resize(390, 844, phone=True)
        assert shown.read("document.documentElement.scrollWidth") == 390
        assert shown.console == []
        assert shown.requests == []
