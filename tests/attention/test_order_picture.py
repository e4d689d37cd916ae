"""The picture of sequence orders shows the pairs that masks keep and the shares that ranks have."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jaxpar.attention.order_picture import CELL, DRAWN, RANKS, STRIP, order_picture

FILE = Path(__file__).parents[2] / "docs" / "pictures" / "sequence-orders.svg"
COMMAND = "python -m jaxpar.attention.order_picture > docs/pictures/sequence-orders.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> str:
    return order_picture()


def test_the_picture_of_the_docs_is_what_is_drawn_today(drawn: str) -> None:
    assert FILE.read_text(encoding="utf-8") == drawn, f"run {COMMAND}"
    assert COMMAND in (FILE.parents[1] / "long-context.md").read_text(encoding="utf-8")


def test_colored_areas_are_the_seen_pairs_of_each_rank(drawn: str) -> None:
    paths = [path for path in ElementTree.fromstring(drawn).iter(f"{SVG}path") if path.get("class", "").startswith("r")]
    paths = [path for path in paths if path.get("class") != "rule"]
    boxes = [re.findall(r"h(\d+)v(\d+)", path.get("d", "")) for path in paths]
    pairs = [sum(int(width) // CELL for width, height in of_path if int(height) == CELL) for of_path in boxes]
    contiguous, zigzag, striped = [36, 100, 164, 228], [132] * 4, [120, 128, 136, 144]
    assert len(pairs) == 9 * RANKS and pairs[: 3 * RANKS] == contiguous + zigzag + striped
    assert {sum(pairs[i : i + RANKS]) for i in range(12, 24, RANKS)} == {4 * DRAWN - 6}, "windows of four"
    held = [sum(int(height) == STRIP for _, height in of_path) for of_path in boxes]
    assert set(held) == {DRAWN // RANKS}


def test_shares_are_printed_for_each_rank(drawn: str) -> None:
    shares = [text.text for text in ElementTree.fromstring(drawn).iter(f"{SVG}text") if text.get("class") == "n end"]
    assert shares[:8] == ["6.3%", "18.8%", "31.2%", "43.7%"] + ["25.0%"] * 4, "(2r + 1) / 16 in the natural order"
    assert len(shares) == 9 * RANKS
    assert drawn.count("busiest +75%") == 1
