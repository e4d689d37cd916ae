"""The first choice rests on mechanisms that published runs used; faster ones are listed below it with their gain."""

from dataclasses import replace

import pytest

from jaxpar.planner.report import words
from jaxpar.planner.search.asked import NEVER_MEASURED, asked_for, never_measured, parse_avoided, taken_by
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from tests.planner.spaces import model_of, search_of

CONFIG = model_of(data={"batch_size": 64})


@pytest.fixture(scope="module")
def search() -> Search:
    return search_of(CONFIG, "h100:1x4", pipe=2)


@pytest.fixture(scope="module")
def fastest(search: Search) -> list[Planned]:
    return search.best(3)


def test_the_best_of_what_was_measured_comes_first_and_what_is_faster_below(
    search: Search, fastest: list[Planned]
) -> None:
    assert never_measured(fastest[0].candidate.layout), "this space has a faster layout that no run shows"
    first, *others = search.measured_first(fastest)
    known = Search(replace(search.space, avoided=parse_avoided(["unmeasured"]))).best(1)[0]
    assert first.candidate.seconds == known.candidate.seconds >= fastest[0].candidate.seconds
    assert not never_measured(first.candidate.layout)
    assert [one.candidate for one in others] == [one.candidate for one in fastest if one is not first]


def test_a_line_has_the_gain_and_the_choices_that_take_it(search: Search, fastest: list[Planned]) -> None:
    plans = search.measured_first(fastest)
    gain, layout = words.gain(plans), fastest[0].candidate.layout
    assert gain is not None and words.gain(fastest) is None
    assert all(f"--fix {taken_by(name, layout)}" in gain for name in never_measured(layout))
    assert words.difference(plans[0].candidate, fastest[0].candidate).partition(":")[0].endswith("faster")


def test_a_mechanism_that_was_asked_for_is_no_reason_for_another_first_choice() -> None:
    asked = search_of(CONFIG, "h100:1x4", pipe=2, schedule="zb-h1", pipe_ends="last", context=1)
    plans = asked.best(2)
    assert never_measured(plans[0].candidate.layout) == ["zb-h1"]
    assert asked.measured_first(plans) is plans


def test_plans_stay_where_nothing_else_fits_or_no_run_is_published() -> None:
    alone = search_of(CONFIG, "h100:1x4", pipe=2).avoiding(frozenset({"1f1b", "interleaved"}))
    plans = alone.best(1)
    assert never_measured(plans[0].candidate.layout) and alone.measured_first(plans) is plans
    on_cpus = search_of(CONFIG, "cpu:1x4", context=4, context_strategy="ulysses")
    plans = on_cpus.best(1)
    assert never_measured(plans[0].candidate.layout) and on_cpus.measured_first(plans) is plans


@pytest.mark.parametrize("name", sorted(NEVER_MEASURED))
def test_every_mechanism_is_taken_by_a_choice(name: str, fastest: list[Planned]) -> None:
    key, _, value = taken_by(name, fastest[0].candidate.layout).partition("=")
    assert name in asked_for({key: value})
