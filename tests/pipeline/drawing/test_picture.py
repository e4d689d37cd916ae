"""Pictures of schedules, read back as XML."""

import re
from fractions import Fraction
from xml.etree import ElementTree

import pytest

from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.drawing.colors import color, contrast, ink
from jaxpar.pipeline.drawing.picture import LEFT, picture
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import TIMELINES, Mode, Simulation, simulate
from tests.pipeline.any_schedule import every_schedule

SVG = "{http://www.w3.org/2000/svg}"


def drawn(simulation: Simulation) -> dict[str, tuple[float, float, float, str | None]]:
    """Left, right and top of each box and the number in it, by the action that its tooltip names."""
    found = {}
    for group in ElementTree.fromstring(picture(simulation)).iter(f"{SVG}g"):
        path, number = group.find(f"{SVG}path"), group.find(f"{SVG}text")
        message = path.find(f"{SVG}title") if path is not None else None
        if path is None or message is None or message.text is None:
            continue  # the legend
        left, top, right = map(float, re.findall(r"[\d.]+", path.attrib["d"])[:3])
        found[message.text.split(":")[0]] = left, right, top, None if number is None else number.text
    return found


@pytest.mark.parametrize("mode", TIMELINES)
@pytest.mark.parametrize("schedule", every_schedule(4, 8), ids=lambda schedule: schedule.name)
def test_every_action_is_a_box_to_scale_in_the_row_of_its_rank(schedule, mode: Mode):
    simulation = simulate(schedule, Durations(transfer=Fraction(1, 4)), mode=mode)
    boxes = drawn(simulation)
    assert boxes.keys() == {str(event.action) for event in simulation.timeline}
    scale = (max(right for _, right, *_ in boxes.values()) - LEFT) / max(event.end for event in simulation.timeline)
    rows = {}
    for event in simulation.timeline:
        left, right, top, number = boxes[str(event.action)]
        assert left == pytest.approx(LEFT + scale * event.start, abs=0.1)
        assert right == pytest.approx(LEFT + scale * event.end, abs=0.1)
        assert rows.setdefault(event.rank, top) == top
        assert number == str(event.action.microbatch)
    assert sorted(rows.values()) == [rows[rank] for rank in range(4)]


def test_boxes_too_narrow_for_their_number_have_none():
    schedule = make_schedule("1f1b", ranks=2, microbatches=120)
    numbers = [number for *_, number in drawn(simulate(schedule, Durations(backward=100))).values()]
    assert None in numbers
    assert "119" in numbers


def test_names_from_files_cannot_break_the_picture():
    schedule = make_schedule("1f1b", ranks=2, microbatches=2)
    named = simulate(type(schedule)(**{**vars(schedule), "name": 'a"<b>&'}))
    assert ElementTree.fromstring(picture(named)).attrib["aria-label"].startswith('a"<b>&: 2 ranks')


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("laps", [1, 2, 8])
def test_numbers_can_be_read_on_every_shade_on_light_paper_and_dark(laps: int, dark: bool):
    for kind in Kind:
        papers = [color(kind, lap, laps, dark=dark) for lap in range(laps)]
        assert len(set(papers)) == laps
        assert min(contrast(ink(paper), paper) for paper in papers) >= 4.5


def test_contrast_is_that_of_the_guidelines():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)
