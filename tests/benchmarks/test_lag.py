"""A study of lags uses the runs that are there again, and none of other settings."""

import subprocess
from argparse import Namespace

import pytest

from benchmarks.lag import fine_tuned, reversed_words


def test_a_run_of_other_settings_is_not_used_again(tmp_path, monkeypatch):
    trained = []

    def train(command: list[str], **keys: object) -> None:
        trained.append(command)
        (tmp_path / "fine_tuned").mkdir()
        (tmp_path / "fine_tuned/summary.json").touch()

    monkeypatch.setattr(subprocess, "run", train)
    fine_tuned(Namespace(folder=tmp_path))
    fine_tuned(Namespace(folder=tmp_path))
    monkeypatch.setattr("benchmarks.lag.FINE_TUNED", {"data.batch_size": 64})
    with pytest.raises(SystemExit, match=r"fine_tuned is a run of other settings.* expected another --folder"):
        fine_tuned(Namespace(folder=tmp_path))
    assert len(trained) == 1


def test_about_a_quarter_of_the_words_that_are_learned_from_are_right():
    records = reversed_words()
    assert round(sum(one["completion"] == one["answer"] for one in records) / len(records), 2) == 0.27
