"""Published schedules: their orders as papers and programs have them, and sizes that they cannot take."""

import pytest
from hypothesis import given, settings

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.schedules import SCHEDULES, Action, Kind, Schedule, make_schedule, parse_action
from jaxpar.pipeline.validation import validate
from tests.pipeline.any_schedule import any_schedule
from tests.sentences import refused

F, B, W = Kind
ORDERS = [
    ("one-stage", (1, 3, 1), 0, "0F0 0B0 0F1 0B1 0F2 0B2"),
    # From the figures of the papers: GPipe's 2c and PipeDream-Flush's 2; Megatron-LM's 4 cut down to two ranks.
    ("gpipe", (4, 4, 1), 2, "2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3"),
    ("1f1b", (4, 8, 1), 0, "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7"),
    ("1f1b", (4, 8, 1), 3, "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7"),
    ("interleaved", (2, 4, 2), 0, "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"),
    ("interleaved", (2, 4, 2), 1, "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"),
    ("breadth-first", (2, 3, 2), 1, "1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2"),
    ("zb-h1", (3, 4, 1), 0, "0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3"),
    ("zb-h1", (3, 4, 1), 2, "2F0 2B0 2F1 2B1 2F2 2B2 2W0 2F3 2B3 2W1 2W2 2W3"),
    # As DeepSeek's program runs it, with B as B and W (torch 2.9's ScheduleDualPipeV has the same).
    ("dualpipe-v", (4, 10, 2), 0,
     "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7B0 7W0 7F1 7B1 7W1 7F2 7B2 7W2 7F3 0F7 7B3 7W3 7F4 0B0 0W0 0F8 7B4 7W4 7F5 "
     "0B1 0W1 0F9 7B5 7W5 7F6 0B2 0W2 7B6 7W6 7F7 0B3 0W3 7B7 7W7 7F8 0B4 0W4 7B8 7W8 7F9 0B5 0W5 7B9 7W9 0B6 0W6 0B7 "
     "0W7 0B8 0W8 0B9 0W9"),
    ("dualpipe-v", (4, 10, 2), 2,
     "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5B0 5W0 5F3 2F5 5B1 5W1 5F4 2B0 2W0 2F6 5B2 5W2 5F5 2B1 2W1 2F7 5B3 5W3 5F6 "
     "2B2 2W2 2F8 5B4 5W4 5F7 2B3 2W3 2F9 5B5 5W5 5F8 2B4 2W4 5B6 5W6 5F9 2B5 2W5 5B7 5W7 2B6 2W6 5B8 5W8 2B7 5B9 2B8 "
     "2W7 2B9 5W9 2W8 2W9"),
    ("dualpipe-v", (4, 10, 2), 3,
     "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 4W0 4F4 3B0 3W0 3F5 4B1 4W1 4F5 3B1 3W1 3F6 4B2 4W2 4F6 3B2 3W2 3F7 "
     "4B3 4W3 4F7 3B3 3W3 3F8 4B4 4W4 4F8 3B4 3W4 3F9 4B5 4W5 4F9 3B5 3W5 4B6 4W6 3B6 3W6 4B7 4W7 3B7 3W7 4B8 3B8 4B9 "
     "3B9 4W8 3W8 4W9 3W9"),
]  # fmt: skip
"""Schedule, its ranks, microbatches and virtual stages, a rank, and what that does."""


@pytest.mark.parametrize(("name", "sizes", "rank", "order"), ORDERS)
def test_a_rank_takes_its_actions_in_the_published_order(name: str, sizes: tuple[int, int, int], rank: int, order: str):
    ranks, microbatches, virtual_stages = sizes
    schedule = make_schedule(name, ranks=ranks, microbatches=microbatches, virtual_stages=virtual_stages)
    assert " ".join(map(str, schedule.orders[rank])) == order


def test_an_action_is_written_as_chunk_kind_microbatch_and_read_back():
    assert str(Action(F, 0)) == "0F0"
    assert str(Action(B, 12, chunk=3)) == "3B12"
    assert parse_action(" 1w4 ") == Action(W, 4, 1)


@pytest.mark.parametrize("text", ["", "F0", "2F", "2X0", "-1F0", "2F0 2F1", "2I0"])
def test_what_is_no_action_is_refused_with_an_example(text: str):
    with refused("is not an action", "as in 2F0", error=ScheduleError):
        parse_action(text)


@settings(deadline=None, max_examples=80)
@given(any_schedule())
def test_every_schedule_is_valid_for_all_sizes_that_it_takes(schedule: Schedule):
    validate(schedule)


@pytest.mark.parametrize(
    ("spelled", "name"), [("1F1B", "1f1b"), ("zb_h1", "zb-h1"), ("Breadth_First", "breadth-first")]
)
def test_names_may_have_either_line_and_any_case(spelled: str, name: str):
    assert make_schedule(spelled, ranks=2, microbatches=4).name == name


@pytest.mark.parametrize(
    ("name", "sizes", "parts"),
    [
        ("1f1c", (4, 8, None), ("'1f1c'", "did you mean 1f1b?", "one-stage, gpipe, ")),
        ("dualpipe", (4, 8, None), ("'dualpipe'", "did you mean dualpipe-v?")),
        ("interleaved", (4, 6, 2), ("microbatches", "a multiple of its 4 ranks", "got 6", "4 or 8")),
        ("interleaved", (4, 3, 2), ("a multiple of its 4 ranks", "got 3; 4 would")),
        ("interleaved", (4, 8, 1), ("interleaved", "at least 2 virtual stages", "got 1")),
        ("zb-uniform", (4, 6, 2), ("zb-uniform", "a multiple of its 4 ranks", "got 6")),
        ("1f1b", (4, 8, 2), ("1f1b", "exactly 1 virtual stages", "got 2")),
        ("zb-v", (4, 8, 3), ("zb-v", "exactly 2 virtual stages", "got 3")),
        ("breadth-first", (4, 3, 2), ("breadth-first", "4 ranks", "at least 4 microbatches", "got 3")),
        ("dualpipe-v", (4, 7, 2), ("dualpipe-v", "4 ranks", "at least 8 microbatches", "got 7")),
        ("one-stage", (2, 4, None), ("one-stage", "1 pipeline rank", "got 2")),
        ("gpipe", (0, 4, None), ("ranks", "at least 1", "got 0")),
        ("gpipe", (2, 0, None), ("microbatches", "at least 1", "got 0")),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_numbers(
    name: str, sizes: tuple[int, int, int | None], parts: tuple[str, ...]
):
    ranks, microbatches, virtual_stages = sizes
    with refused(*parts, error=ScheduleError):
        make_schedule(name, ranks=ranks, microbatches=microbatches, virtual_stages=virtual_stages)


def test_each_schedule_states_what_it_needs():
    assert SCHEDULES["interleaved"].needs() == "m a multiple of p, v >= 2"
    assert SCHEDULES["dualpipe-v"].needs() == "m >= 2p, v = 2"
    assert SCHEDULES["one-stage"].needs() == "p = 1, v = 1"
