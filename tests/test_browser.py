"""The browser of the tests, where it is missing or does not do what it should."""

from pathlib import Path

import pytest

from tests.browser import browser


@pytest.mark.long
def test_errors_exceptions_and_requests_of_a_page_are_recorded(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<p>text</p><button onclick='missing()'>press</button>"
        "<script>console.error('printed', 1); fetch('http://127.0.0.1:9/').catch(() => {})</script>"
    )
    with browser() as shown:
        shown.open(page)
        shown.click("button")
        shown.wait_for_message("missing is not defined")
        assert "printed 1" in shown.console and shown.requests == ["http://127.0.0.1:9/"]
        with pytest.raises(AssertionError, match="no such element"):
            shown.click("#nothing")
        with pytest.raises(AssertionError, match="nothing is not defined"):
            shown.read("nothing.at.all")
