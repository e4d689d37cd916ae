"""Data of the study of lags."""

from benchmarks.lag import reversed_words


def test_about_a_quarter_of_the_words_that_are_learned_from_are_right():
    records = reversed_words()
    assert round(sum(one["completion"] == one["answer"] for one in records) / len(records), 2) == 0.27
