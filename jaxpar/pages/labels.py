"""Places labels beside points so that no two of them overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

NEAR = [
    (sign_x * dx, sign_y * dy)
    for dx, dy in sorted(product((0, 8, 16, 26, 40, 60, 90), (8, 15, 24, 36, 52, 75)), key=sum)
    for sign_x, sign_y in product((1, -1), (1, -1))
]
"""Distances of a label's nearest corner from its point, best first."""


@dataclass(frozen=True)
class Box:
    """A rectangle; whether y rises or falls does not matter."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlaps(self, other: Box) -> bool:
        """Whether they have an area in common."""
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def contains(self, other: Box) -> bool:
        """Whether `other` lies inside."""
        return self.x0 <= other.x0 and other.x1 <= self.x1 and self.y0 <= other.y0 and other.y1 <= self.y1


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    area: Box,
    covered: Sequence[Box] = (),
    unit: float = 1.0,
) -> list[Box | None]:
    """Place the label of each point in a box inside `area`, without overlap.

    The position near the point that covers least of `covered` is chosen; if labels leave none free, the nearest free
    position in the area.

    Args:
        points: in the order in which they choose.
        sizes: width and height of each label.
        area: where labels may be.
        covered: what they should not cover, such as lines and marks.
        unit: length of a unit of `NEAR`.

    Returns:
        The box of each point; None if the area has no room left.
    """
    placed: list[Box] = []
    boxes: list[Box | None] = []
    for point, size in zip(points, sizes, strict=True):
        near = _free(_near(point, size, unit), area, placed)
        best = min(near, key=lambda box: sum(box.overlaps(other) for other in covered), default=None)
        if best is None:
            best = _nearest(point, _free(_grid(size, area), area, placed))
        boxes.append(best)
        placed += [best] if best is not None else []
    return boxes


def _near(point: tuple[float, float], size: tuple[float, float], unit: float) -> Iterator[Box]:
    (x, y), (width, height) = point, size
    for dx, dy in NEAR:
        left = x + unit * dx if dx > 0 else x + unit * dx - width if dx else x - width / 2
        low = y + unit * dy if dy > 0 else y + unit * dy - height
        yield Box(left, low, left + width, low + height)


def _grid(size: tuple[float, float], area: Box) -> Iterator[Box]:
    """Places all over `area`, a third of a label apart."""
    width, height = size
    columns, rows = int(3 * (area.x1 - area.x0) / width), int(3 * (area.y1 - area.y0) / height)
    for column, row in product(range(columns + 1), range(rows + 1)):
        left, low = area.x0 + column * width / 3, area.y0 + row * height / 3
        yield Box(left, low, left + width, low + height)


def _free(boxes: Iterator[Box], area: Box, placed: Sequence[Box]) -> list[Box]:
    return [box for box in boxes if area.contains(box) and not any(box.overlaps(other) for other in placed)]


def _nearest(point: tuple[float, float], boxes: Sequence[Box]) -> Box | None:
    x, y = point
    distance = lambda box: ((box.x0 + box.x1) / 2 - x) ** 2 + ((box.y0 + box.y1) / 2 - y) ** 2
    return min(boxes, key=distance, default=None)
