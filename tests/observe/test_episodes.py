"""What is told of things that come again and again."""

from __future__ import annotations

from jaxpar.observe.episodes import Episodes


def test_the_first_of_each_kind_is_told_and_again_after_it_was_quiet():
    episodes = Episodes(quiet=10)
    told = [step for step in (3, 4, 14, 24, 35, 40) if episodes.begins("slow", step)]
    assert told == [3, 35]
    assert episodes.begins("spike", 40)
    assert episodes.counts == {"slow": 6, "spike": 1}


def test_a_run_that_went_back_far_begins_anew():
    episodes = Episodes(quiet=10)
    assert episodes.begins("spike", 100)
    assert not episodes.begins("spike", 95)
    assert episodes.begins("spike", 50)
