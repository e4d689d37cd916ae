"""The browser of the tests, where it is missing or does not do what it should."""

from pathlib import Path

import pytest

from tests.browser import browser, chromium
from tests.setup.programs import program


def test_a_missing_browser_fails_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="apt-get install chromium"):
        chromium()
    found = program(tmp_path / "google-chrome", "exit 0")
    assert chromium() == str(found)
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    with pytest.raises(AssertionError, match="/nowhere/chromium"):
        chromium()


def test_a_browser_that_dies_reports_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", str(program(tmp_path / "broken", "echo no library >&2; exit 127")))
    with pytest.raises(AssertionError, match="Chromium ended: no library"), browser():
        pass


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
        assert "printed 1" in shown.console
        assert shown.requests == ["http://127.0.0.1:9/"]
        with pytest.raises(AssertionError, match="no such element"):
            shown.click("#nothing")
        with pytest.raises(AssertionError, match="nothing is not defined"):
            shown.read("nothing.at.all")
