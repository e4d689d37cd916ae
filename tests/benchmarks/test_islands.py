"""The runs that islands are compared with have the settings that were asked for."""

from benchmarks.islands import QUARTER, settings_of


def test_the_quarter_run_has_a_quarter_of_the_rows_and_the_evaluation_that_was_asked_for():
    assert settings_of(QUARTER, {"data.batch_size": "32"}) == {"data.batch_size": 8, "evaluation.batches": 32}
    assert settings_of(QUARTER, {"evaluation.batches": "4"})["evaluation.batches"] == "4"
