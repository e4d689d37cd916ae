"""The colors of actions: a hue for each kind, a shade for each chunk of a rank, on light paper and on dark."""

from __future__ import annotations

from colorsys import hls_to_rgb

from jaxpar.pipeline.actions import Kind

type Rgb = tuple[int, int, int]

HUES = {Kind.FORWARD: 203, Kind.BACKWARD: 26, Kind.WEIGHT: 163}
"""Degrees: blue, orange and green as Okabe and Ito chose them, which color-blind people can distinguish."""
SATURATIONS = {Kind.FORWARD: 0.72, Kind.BACKWARD: 0.84, Kind.WEIGHT: 0.62}
LIGHT_PAPER = {Kind.FORWARD: (0.37, 0.80), Kind.BACKWARD: (0.54, 0.83), Kind.WEIGHT: (0.42, 0.80)}
"""Lightness of the first and of the last chunk of a rank."""
DARK_PAPER = dict.fromkeys(Kind, (0.62, 0.34))
INKS: tuple[Rgb, Rgb] = (255, 255, 255), (0, 0, 0)


def color(kind: Kind, lap: int, laps: int, *, dark: bool = False) -> Rgb:
    """The color of an action on chunk number `lap` of the `laps` chunks of its rank."""
    first, last = (DARK_PAPER if dark else LIGHT_PAPER)[kind]
    part = lap / (laps - 1) if laps > 1 else 0
    red, green, blue = hls_to_rgb(HUES[kind] / 360, first + part * (last - first), SATURATIONS[kind])
    return round(255 * red), round(255 * green), round(255 * blue)


def ink(paper: Rgb) -> Rgb:
    """White or black, whichever is easier to read on `paper`: one of them always has a contrast of 4.5."""
    return max(INKS, key=lambda candidate: contrast(candidate, paper))


def contrast(one: Rgb, other: Rgb) -> float:
    """Contrast of two colors by WCAG 2.2: from 1, none, to 21; text needs 4.5, or 3 where it is large or bold."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def hexadecimal(rgb: Rgb) -> str:
    """Format a color as `#1a2b3c`."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def _luminance(rgb: Rgb) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (value / 255 for value in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
