"""Labels of points: none overlaps another, wherever the points are."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from jaxpar.pages.labels import Box, place_labels

AREA = Box(0, 0, 1000, 460)
SIZE = (150.0, 15.0)


def none_overlap(boxes: list[Box | None]) -> bool:
    placed = [box for box in boxes if box is not None]
    assert len(placed) == len(boxes), "there is room"
    return not any(a.overlaps(b) for a, b in combinations(placed, 2)) and all(map(AREA.contains, placed))


def test_labels_of_points_in_one_place_stand_apart() -> None:
    assert none_overlap(place_labels([(500.0, 230.0)] * 12, [SIZE] * 12, AREA))


def test_labels_in_a_corner_stay_inside() -> None:
    assert none_overlap(place_labels([(999.0, 459.0), (998.0, 458.0), (0.0, 0.0)], [SIZE] * 3, AREA))


@given(st.lists(st.tuples(st.floats(400, 420), st.floats(200, 210)), min_size=1, max_size=8))
def test_labels_of_close_points_do_not_overlap(points: list[tuple[float, float]]) -> None:
    marks = [Box(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    assert none_overlap(place_labels(points, [SIZE] * len(points), AREA, marks))


def test_a_lone_label_covers_neither_its_point_nor_another() -> None:
    marks = [Box(495, 225, 505, 235), Box(510, 240, 600, 300)]
    (box,) = place_labels([(500, 230)], [SIZE], AREA, marks)
    assert box is not None and not any(map(box.overlaps, marks))


def test_a_label_without_room_is_left_out() -> None:
    small = Box(0, 0, 160, 16)
    first, second = place_labels([(5, 5), (6, 6)], [SIZE] * 2, small)
    assert first is not None and second is None
