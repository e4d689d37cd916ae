"""Chunks in flight and their bytes."""

from hypothesis import given, settings

from jaxpar.pipeline.schedules import Kind, Schedule, make_schedule, parse_action
from jaxpar.pipeline.timing.in_flight import ChunkBytes, Peak, lockstep_peaks, orders_of, peak
from tests.pipeline.any_schedule import any_schedule


def actions(text: str) -> list:
    return list(map(parse_action, text.split()))


def test_a_chunk_is_in_flight_from_f_to_b_and_to_w_where_the_backward_is_split():
    whole, split = actions("0F0 0F1 0B0 0F2 0B1 0B2"), actions("0F0 0F1 0B0 0F2 0W0 0B1 0B2 0W1 0W2")
    assert peak(whole, False) == Peak(in_flight=2, stash=2, kept=0, bytes=0)
    assert peak(split, True) == Peak(in_flight=3, stash=2, kept=2, bytes=0)


def test_bytes_of_a_chunk_change_from_stash_to_kept_when_b_ends():
    sizes = ChunkBytes(stash=[100, 10], kept=[30, 3])
    assert peak(actions("0F0 1F0 1B0 0B0 1W0 0W0"), True, sizes).bytes == 110
    assert peak(actions("1F0 1B0 1F1 1B1 1W0 1W1"), True, sizes).bytes == 3 + 10
    assert peak(actions("1F0 1B0 1W0 1F1 1B1 1W1"), True, sizes).bytes == 10
    assert peak(actions("0F0 0F1 0B0 0B1"), False, sizes).bytes == 200


@settings(deadline=None, max_examples=60)
@given(any_schedule())
def test_peaks_are_the_largest_overlap_of_lifetimes_in_ticks(schedule: Schedule):
    """Counted in another way: a chunk lives from the tick of its F to that of its last action, both included."""
    last = Kind.WEIGHT if schedule.splits_backward else Kind.BACKWARD
    for rank, found in enumerate(lockstep_peaks(schedule)):
        first_tick, last_tick = {}, {}
        for t, tick in enumerate(schedule.ticks):
            for action in tick[rank]:
                name = action.microbatch, action.chunk
                first_tick |= {name: t} if action.kind is Kind.FORWARD else {}
                last_tick |= {name: t} if action.kind is last else {}
        alive = [sum(first_tick[n] <= t <= last_tick[n] for n in first_tick) for t in range(len(schedule.ticks))]
        assert found.in_flight == max(alive)


def test_orders_of_ticks_are_those_of_each_rank():
    schedule = make_schedule("zb-uniform", ranks=3, microbatches=5)
    assert orders_of(schedule.ticks) == schedule.orders
