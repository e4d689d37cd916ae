"""The search for the longest row that fits, with lengths that fit by decree: nothing is compiled."""

import pytest

from benchmarks.longest.__main__ import Layout, layouts
from benchmarks.longest.search import Longest, furthest, longest
from jaxpar.hardware.cluster import parse_cluster


class Limit:
    """Fits up to a length, and remembers what was tried."""

    def __init__(self, limit: int):
        self.limit = limit
        self.tried: list[int] = []

    def __call__(self, length: int) -> bool:
        self.tried.append(length)
        return length <= self.limit


@pytest.mark.parametrize("limit", [70, 999, 1000, 1001, 5_000, 123_456, 10_000_000])
def test_brackets_the_limit_within_the_tolerance_in_multiples_of_the_step(limit: int) -> None:
    fits = Limit(limit)
    found = longest(fits, start=1000, least=1, step=10)
    assert found is not None and found.fits <= limit < found.refused
    assert found.refused - found.fits <= max(10, 0.1 * found.fits)
    assert all(length % 10 == 0 for length in fits.tried)
    assert len(set(fits.tried)) <= 20


def test_a_step_as_long_as_the_start_still_ends() -> None:
    assert longest(Limit(99), start=1, least=1, step=64) == Longest(64, 128)


def test_nothing_where_not_even_the_least_fits() -> None:
    fits = Limit(9)
    assert longest(fits, start=1000, least=10, step=10) is None and fits.tried == [1000, 10]


def test_a_later_candidate_counts_only_where_it_goes_clearly_further() -> None:
    first, shorter, alike, further = Limit(1000), Limit(500), Limit(1010), Limit(4000)
    named = {"first": first, "shorter": shorter, "alike": alike, "further": further}
    found = furthest({name: (fits, 10) for name, fits in named.items()}, start=100, least=10)
    assert found is not None
    name, end = found
    assert name == "further" and end.fits <= 4000 < end.refused
    assert len(shorter.tried) == len(alike.tried) == 1, "one compile decides against a layout"
    assert furthest({"none": (Limit(0), 10)}, start=100, least=10) is None


def test_layouts_take_all_gpus_and_lengths_that_their_chunks_and_blocks_divide() -> None:
    cluster = parse_cluster("h100:4x8")
    found = layouts(cluster)
    assert {entry.fsdp * entry.context * entry.tensor for entry in found} == {32}
    assert Layout(1, 32, 1, "usp") in found
    assert all(entry.step % (2 * 512 * entry.context * entry.tensor) == 0 for entry in found)
    assert [entry.name for entry in layouts(parse_cluster("h100:1x1"))] == ["one GPU"]
