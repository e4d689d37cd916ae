"""Reports of things that repeat."""

from jaxpar.observe.episodes import Episodes


def test_the_first_of_each_kind_is_reported_and_again_after_it_was_quiet():
    episodes = Episodes(quiet=10)
    reported = [step for step in (3, 4, 14, 24, 35, 40) if episodes.begins("slow", step)]
    assert reported == [3, 35]
    assert episodes.begins("spike", 40) and episodes.occurrences == {"slow": 6, "spike": 1}


def test_episodes_of_a_kind_that_is_kept_apart_begin_at_most_once_in_that_time():
    now = 0.0
    episodes = Episodes(quiet=10, apart_s={"slow": 3600.0}, clock=lambda: now)
    reported = []
    for step in range(0, 3000, 100):  # thirty times in an hour and a quarter
        now += 150.0
        reported += [step] if episodes.begins("slow", step) else []
        assert episodes.begins("spike", step)
    assert reported == [0, 2400]
    assert episodes.occurrences == {"slow": 30, "spike": 30}


def test_a_run_that_went_back_far_starts_over():
    episodes = Episodes(quiet=10)
    assert episodes.begins("spike", 100) and not episodes.begins("spike", 95) and episodes.begins("spike", 50)
