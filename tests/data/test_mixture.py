"""The row of a source that an example is depends on its number alone; sources have their shares and go on."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.data.loader import batch_rows
from jaxpar.data.mixture import MixedSource, Mixture, MixturePlan, points_below
from jaxpar.data.packing import PackedRows
from jaxpar.data.stream import TokenStream
from tests.sentences import refused

LENGTH = 4


def source(name: str, weight: float, *, rows: int = 50, identity: str | None = None) -> MixedSource:
    """A source of `rows` rows an epoch whose tokens are all its own."""
    first = 1000 * (ord(name) - ord("a"))
    stream = TokenStream(np.arange(first, first + rows * LENGTH, dtype=np.uint16), np.arange(0, rows * LENGTH, 8))
    packed = PackedRows(stream, sequence_length=LENGTH, packed=True, seed=1, name=name)
    return MixedSource(name, identity or f"digest of {name}", packed, weight)


def mixture(seed: int = 5, **weights: float) -> Mixture:
    return Mixture([source(name, weight) for name, weight in weights.items()], seed=seed)


def places(mixed: Mixture, examples) -> list[tuple[str, int]]:
    return [(found.name, row) for found, row in map(mixed.source_row, examples)]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), circle=st.integers(1, 80), count=st.integers(0, 90), stride=st.integers(0, 300))
def test_points_are_counted_as_if_they_were_listed(data, circle, count, stride):
    shift, end = data.draw(st.integers(0, circle - 1)), data.draw(st.integers(0, circle))
    listed = sum((stride * i + shift) % circle < end for i in range(count))
    assert points_below(end, count, stride, shift, circle) == listed


def test_each_source_is_read_row_after_row_without_a_gap():
    found = places(mixture(a=0.6, b=0.3, c=0.1), range(2000))
    for name in "abc":
        assert [row for owner, row in found if owner == name] == list(range(sum(owner == name for owner, _ in found)))


def test_every_stretch_has_the_shares_of_the_weights():
    owners = [name for name, _ in places(mixture(a=6, b=3, c=1), range(3000))]
    for first in range(0, 2700, 37):
        counts = Counter(owners[first : first + 300])
        assert abs(counts["a"] - 180) <= 3 and abs(counts["b"] - 90) <= 3 and abs(counts["c"] - 30) <= 3


def test_an_example_is_the_same_whoever_asks_and_however_the_sources_are_written():
    mixed, turned = mixture(a=2, b=1, c=0), mixture(c=0, b=1, a=2)
    assert places(mixed, range(300)) == places(turned, range(300))
    assert places(mixed, reversed(range(300))) == places(mixed, range(300))[::-1]
    whole = batch_rows(mixed, 7, 8, range(8))
    for host in range(4):
        part = batch_rows(mixed, 7, 8, range(host, 8, 4))
        for name, values in part.items():
            np.testing.assert_array_equal(values, whole[name][host::4])


def test_the_place_of_an_example_far_ahead_is_known_at_once():
    mixed = mixture(a=2, b=1)
    found, row = mixed.source_row(10**12)
    assert abs(row - 10**12 * (2 / 3 if found.name == "a" else 1 / 3)) < 100


def test_seeds_differ_and_a_source_without_weight_gets_nothing():
    assert places(mixture(0, a=1, b=1), range(60)) != places(mixture(1, a=1, b=1), range(60))
    assert {name for name, _ in places(mixture(a=1, b=0, c=0), range(500))} == {"a"}
    assert {name for name, _ in places(mixture(a=0.1, b=0.2, c=0.7, d=0), range(500))} == {"a", "b", "c"}


def test_orders_are_those_of_earlier_versions():
    assert "".join(name for name, _ in places(mixture(0, a=0.5, b=0.3, c=0.2), range(24))) == "bacaabacbacaabacbabacbac"


def test_when_weights_change_each_source_goes_on_where_it_was():
    first = mixture(a=3, b=1)
    early = places(first, range(200))
    second = mixture(a=1, b=1, c=2).continued(json.loads(json.dumps(first.facts)), 200)
    later = places(second, range(200, 600))
    third = mixture(a=1, c=1).continued(json.loads(json.dumps(second.facts)), 600)
    last = places(third, range(600, 700))
    fourth = mixture(a=1, b=1).continued(json.loads(json.dumps(third.facts)), 700)
    end = places(fourth, range(700, 800))
    for name in "abc":
        rows = [row for owner, row in [*early, *later, *last, *end] if owner == name]
        assert rows == list(range(len(rows))), name
    counts = Counter(name for name, _ in later)
    assert abs(counts["c"] - 200) <= 3 and abs(counts["a"] - 100) <= 3
    assert fourth.epochs(800)["b"] == pytest.approx((50 + 100 + 50) / 50, abs=0.1)


def planned(changes, most=None, **weights: float) -> Mixture:
    """A mixture whose weights are others from some examples on, with most rows of some sources."""
    sources = [source(name, weight) for name, weight in weights.items()]
    identity = {one.name: one.identity for one in sources}
    every = [(0, weights), *changes]
    plan = MixturePlan(
        [(first, {identity[name]: later.get(name, 0.0) for name in weights}) for first, later in every],
        {identity[name]: limit for name, limit in (most or {}).items()},
    )
    return Mixture(sources, seed=5, plan=plan)


def test_planned_weights_come_at_their_example_and_rows_go_on():
    mixed = planned([(200, {"a": 1, "c": 3}), (300, {"b": 1})], a=3, b=1, c=0)
    found = places(mixed, range(400))
    assert found[:200] == places(mixture(a=3, b=1), range(200))
    counts = Counter(name for name, _ in found[200:300])
    assert abs(counts["c"] - 75) <= 3 and counts["b"] == 0 and {name for name, _ in found[300:]} == {"b"}
    for name in "abc":
        rows = [row for owner, row in found if owner == name]
        assert rows == list(range(len(rows))), name
    assert mixed.epochs(400)["c"] == pytest.approx(75 / 50, abs=0.06) and mixed.examples is None


def test_a_source_that_had_its_epochs_leaves_its_share_to_the_others():
    mixed = planned([], {"a": 100, "b": 60}, a=6, b=3, c=1)
    found = places(mixed, range(1000))
    counts = Counter(name for name, _ in found)
    assert counts["a"] == 100 and counts["b"] == 60 and mixed.examples is None
    last = max(example for example, (name, _) in enumerate(found) if name == "a")
    between = Counter(name for name, _ in found[last + 1 : last + 13])
    assert abs(between["b"] - 9) <= 1, "three parts of four, where all remain"
    ended = planned([(40, {"b": 1})], {"a": 100, "b": 60}, a=1, b=1)
    assert ended.examples == 80, "b has 20 in 40, and 40 more"
    with refused("data.max_epochs", "80 rows"):
        ended.source_row(80)


@pytest.mark.parametrize("example", [0, 30, 150, 200, 260])
def test_planned_phases_are_continued_from_any_checkpoint(example):
    arguments = [(100, {"a": 1, "b": 3}), (200, {"a": 1, "b": 1})], {"b": 90}
    mixed = planned(*arguments, a=3, b=1)
    facts = json.loads(json.dumps(mixed.facts))
    again = planned(*arguments, a=6, b=2).continued(facts, example)
    assert again.facts == mixed.facts and places(again, range(example, 400)) == places(mixed, range(example, 400))
    other = planned([], {"b": 110}, a=1, b=1).continued(facts, example)
    for name in "ab":
        rows = [
            row for owner, row in [*places(mixed, range(example)), *places(other, range(example, 400))] if owner == name
        ]
        assert rows == list(range(len(rows))), name
    assert other.facts != facts and other.used(400)["digest of b"] == 110


def test_a_source_that_was_moved_goes_on():
    first = mixture(a=1, b=1)
    moved = [source("z", 1, identity="digest of a"), source("b", 3)]
    used = first.used(100)["digest of a"]
    later = places(Mixture(moved, seed=5).continued(first.facts, 100), range(100, 200))
    assert next(row for name, row in later if name == "z") == used


def test_the_sample_has_documents_of_each_source_by_weight(monkeypatch):
    monkeypatch.setattr("jaxpar.data.mixture.SAMPLE_TOKENS", 100)
    stream = mixture(a=3, b=1, c=0).stream
    counts = Counter((stream.tokens[:] // 1000).tolist())
    assert counts == {0: 75, 1: 25}
    assert stream.starts[:].tolist() == [*range(0, 75, 8), *range(75, 100, 8)]
