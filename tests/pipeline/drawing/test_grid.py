"""Grids of text."""

from fractions import Fraction

from jaxpar.pipeline.drawing.grid import cells_of_orders, cells_of_ticks, cells_of_time, grid
from jaxpar.pipeline.schedules import make_schedule
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.pipeline.timing.simulate import simulate

SCHEDULE = make_schedule("1f1b", ranks=2, microbatches=2)


def test_ticks_stand_below_each_other():
    assert grid(cells_of_ticks(SCHEDULE.ticks)).splitlines() == [
        "       | 0   1       2       3",
        "rank 0 | 0F0 0F1     0B0     0B1",
        "rank 1 |     1F0 1B0 1F1 1B1",
    ]


def test_time_is_drawn_to_scale_with_dashes_where_an_action_goes_on():
    simulation = simulate(SCHEDULE, Durations(Fraction(1, 3), Fraction(2, 3)))
    assert grid(cells_of_time(simulation), even=True).splitlines() == [
        "       | 0   1   2   3   4   5   6   7   8",
        "rank 0 | 0F0 0F1         0B0 -       0B1 -",
        "rank 1 |     1F0 1B0 -   1F1 1B1 -",
    ]


def test_columns_can_be_wider_or_narrower_than_an_action():
    simulation = simulate(SCHEDULE, Durations(2, 4))
    assert len(cells_of_time(simulation, step=1)[0]) == simulation.makespan
    assert cells_of_time(simulation, step=1)[0][:4] == ["0F0", "-", "0F1", "-"]


def test_a_marked_cell_stands_out_among_its_neighbours():
    lines = grid(cells_of_orders(make_schedule("gpipe", ranks=2, microbatches=20).orders), mark=(1, 30)).splitlines()
    assert lines[0].split() == ["|", *map(str, range(24, 37))]
    assert ">1B10<" in lines[2]
    assert grid([["a"], []], mark=(1, 0)).splitlines()[-1] == "rank 1 | > <"
