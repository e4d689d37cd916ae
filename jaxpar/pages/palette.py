"""The colors of pages and pictures, for light paper and for dark."""

from __future__ import annotations

from collections.abc import Mapping
from colorsys import hls_to_rgb

type Color = tuple[str, str]
"""A color on a light and on a dark background."""

THEME: Mapping[str, Color] = {
    "paper": ("#ffffff", "#14181e"),
    "ink": ("#1d2530", "#e3e7ec"),
    "dim": ("#5d6775", "#98a3b1"),
    "faint": ("#e3e8ee", "#2b333d"),
    "raised": ("#f5f7fa", "#1c222a"),
    "hatch": ("#d0d8e1", "#2d3641"),
    "grid": ("#00000018", "#ffffff20"),
    "red": ("#c93636", "#ff7b72"),
    "note": ("#fff6e0", "#3a3117"),
    "good": ("#e6f4ea", "#173524"),
    "good-ink": ("#1e6b34", "#86d8a0"),
    "bad": ("#fbe9e7", "#431f1b"),
    "bad-ink": ("#a52714", "#ffaa9e"),
}

SERIES: tuple[Color, ...] = (
    ("#2a6fbb", "#6cb0f5"),
    ("#c2560f", "#f2a164"),
    ("#2f855a", "#6fd3a0"),
    ("#8a4fb0", "#c79be8"),
    ("#a8325e", "#f08fb0"),
    ("#0f7f8c", "#5fcbd6"),
    ("#8a6a10", "#dcc05a"),
    ("#4d5b6b", "#b3c0cf"),
)
"""Colors of curves and classes, in the order of their use."""
GOLDEN_ANGLE = 137.5
"""Degrees from a hue to the next, beyond those of `SERIES`."""


def series(count: int) -> list[Color]:
    """Return `count` distinct colors."""
    return [SERIES[i] if i < len(SERIES) else _further(i) for i in range(count)]


def _further(index: int) -> Color:
    hue = GOLDEN_ANGLE * index % 360 / 360
    light, dark = (hls_to_rgb(hue, lightness, 0.6) for lightness in (0.34, 0.72))
    return _hexadecimal(light), _hexadecimal(dark)


def _hexadecimal(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
