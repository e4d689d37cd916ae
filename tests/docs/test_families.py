"""The page of families is what their tables and goldens make of it."""

from pathlib import Path

from tests.goldens.table import page


def test_the_page_of_families_is_current():
    assert (Path(__file__).parents[2] / "docs/families.md").read_text() == page(), (
        "python -m tests.goldens.table > docs/families.md"
    )
