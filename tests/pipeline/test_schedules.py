"""Schedules as data: text, runs of like ticks, and the one-stage schedule."""

from __future__ import annotations

from jaxpar.pipeline.schedules import Action, Kind, one_stage

F, B = Kind.FORWARD, Kind.BACKWARD


def test_an_action_is_written_as_chunk_kind_microbatch():
    assert str(Action(F, 0)) == "0F0"
    assert str(Action(B, 12, chunk=3)) == "3B12"


def test_one_stage_takes_each_microbatch_forward_and_backward_in_turn():
    schedule = one_stage(3)
    assert (schedule.ranks, schedule.microbatches) == (1, 3)
    assert [[" ".join(map(str, rank)) for rank in tick] for tick in schedule.ticks] == [
        ["0F0 0B0"], ["0F1 0B1"], ["0F2 0B2"],
    ]  # fmt: skip
    ((kinds, ticks),) = one_stage(4).runs()
    assert (kinds, len(ticks)) == ({F, B}, 4)
