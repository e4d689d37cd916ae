"""Schedules from CSV: what is written is read back, and mistakes are named by line and column."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import Schedule, make_schedule
from jaxpar.pipeline.tables import format_schedule, parse_schedule, read_schedule
from tests.pipeline.any_schedule import any_schedule
from tests.sentences import refused

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@settings(deadline=None, max_examples=40)
@given(any_schedule(most_ranks=4, most_microbatches=8))
def test_what_is_written_is_read_back(schedule: Schedule):
    by_order = parse_schedule(format_schedule(schedule), schedule.name)
    assert by_order.orders == schedule.orders
    assert by_order == schedule or schedule.name == "v-half"  # whose ticks do not follow from its orders
    by_tick = parse_schedule(format_schedule(schedule, "ticks"), schedule.name)
    assert by_tick.ticks == schedule.ticks


def test_a_table_by_hand_is_the_schedule_that_it_describes(tmp_path: Path):
    file = tmp_path / "mine.csv"
    file.write_text(GOOD)
    schedule = read_schedule(file)
    wanted = make_schedule("1f1b", ranks=2, microbatches=2)
    assert schedule.name == "mine"
    assert (schedule.orders, schedule.ticks, schedule.rank_of) == (wanted.orders, wanted.ticks, wanted.rank_of)
    assert parse_schedule("0F0, 0F1,,0b0,0B1\n,1F0,1B0,1F1 1B1\n\n# drawn by hand\n", "mine") == schedule


def test_columns_are_ticks_where_the_file_states_it():
    schedule = parse_schedule("# ticks\n0F0,,,0B0\n,,1F0 1B0,\n", "mine")
    assert [[" ".join(map(str, rank)) for rank in tick] for tick in schedule.ticks] == [
        ["0F0", ""], ["", ""], ["", "1F0 1B0"], ["0B0", ""],
    ]  # fmt: skip


def test_chunks_lie_where_they_stand_and_any_w_splits_the_backward():
    schedule = parse_schedule("0F0,3F0,3B0,3W0,0B0,0W0\n1F0,2F0,2B0,1B0,2W0,1W0\n", "v")
    assert (schedule.rank_of, schedule.virtual_stages, schedule.splits_backward) == ((0, 1, 1, 0), 2, True)


@pytest.mark.parametrize(
    ("text", "row", "parts"),
    [
        ("", "", ("mine: ", "no actions", "expected a line")),
        (GOOD.replace("0F1", "0X1"), "", ("mine, line 1, column 2: ", "'0X1' is not an action")),
        (GOOD.replace(",1B1", ""), "rank 1 | 1F0 1B0 1F1 > <", ("mine: ", "1B1 is missing", "line 2 (rank 1)")),
        (
            GOOD.replace("1F1", "1F1,1F1"),
            "rank 1 | 1F0 1B0 1F1 >1F1< 1B1",
            ("mine: ", "1F1 (line 2, column 4)", "already", "column 3"),
        ),
        (
            GOOD.replace("1B0", "0B0"),
            "rank 1 | 1F0 >0B0< 1F1 1B1",
            ("chunk 0 is on two ranks", "0F0 (line 1, column 1)", "0B0 (line 2"),
        ),
        ("0F0,0B0\n2F0,2B0\n", "", ("chunk 1 has no action", "2F0 (line 2, column 1)")),
        ("0F0,2F0,2B0,0B0\n1F0,1B0\n", "", ("3 chunks", "evenly", "2 ranks")),
        ("0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0\n", "", ("rank 0", "3 of the 4 chunks", "expected 2")),
        (GOOD + "1W0", ">1W0<", ("chunk 1 is on two ranks",)),
        (GOOD.replace("1B0", "1B0,1W0"), "rank 1 |", ("0W0 is missing", "line 1 (rank 0)")),
        ("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n", ">1B0<", ("1B0", "never starts", "needs 1F0")),
        ("# ticks\n0F0,0B0\n1F0 1B0,\n", ">1F0 1B0<", ("1F0 (rank 1, tick 0) needs 0F0", "in tick 0 on rank 0")),
    ],
)
def test_mistakes_are_named_by_line_and_column(text: str, row: str, parts: tuple[str, ...]):
    """And, where there is a grid, the cell is marked in its last row."""
    with refused(*parts, error=ScheduleError, grid=bool(row)) as raised:
        parse_schedule(text, "mine")
    assert row in str(raised.value).splitlines()[-1]


def test_files_that_a_spreadsheet_saved_are_read(tmp_path: Path):
    file = tmp_path / "mine.csv"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_schedule(file) == parse_schedule(GOOD, "mine")


def test_a_number_that_no_schedule_has_is_no_action():
    with refused("mine", "line 1, column 1", "'0F9999", "action", error=ScheduleError):
        parse_schedule(f"0F{'9' * 5000},0B0\n", "mine")
