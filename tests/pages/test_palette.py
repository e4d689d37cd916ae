"""The colors of curves: all different, and to be seen on light paper and on dark."""

from jaxpar.pages.palette import THEME, series
from jaxpar.pipeline.drawing.colors import Rgb, contrast


def rgb(text: str) -> Rgb:
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


def test_lines_of_any_number_of_runs_can_be_distinguished_and_seen() -> None:
    colors = series(40)
    assert len(set(colors)) == 40
    for side, paper in enumerate(THEME["paper"]):
        assert min(contrast(rgb(color[side]), rgb(paper)) for color in colors) >= 3


def test_text_can_be_read() -> None:
    for side in (0, 1):
        for text, ground in (
            ("ink", "paper"),
            ("dim", "paper"),
            ("ink", "note"),
            ("good-ink", "good"),
            ("bad-ink", "bad"),
        ):
            assert contrast(rgb(THEME[text][side]), rgb(THEME[ground][side])) >= 4.5, (text, ground)
