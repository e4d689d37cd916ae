"""A study of lags uses the runs that are there again, and none of other settings."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.lag import fine_tuned, reversed_words


def test_a_run_of_other_settings_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained: list[Path] = []

    def train(command: list[str], **keys: object) -> None:
        name = next(word for word in command if word.startswith("run.name=")).removeprefix("run.name=")
        trained.append(tmp_path / name)
        trained[-1].mkdir()
        (trained[-1] / "summary.json").touch()

    monkeypatch.setattr(subprocess, "run", train)
    options = Namespace(folder=tmp_path)
    fine_tuned(options)
    fine_tuned(options)
    assert trained == [tmp_path / "fine_tuned"]
    with monkeypatch.context() as other:
        other.setattr("benchmarks.lag.FINE_TUNED", {"data.batch_size": 64})
        with pytest.raises(SystemExit, match="fine_tuned is a run of other settings"):
            fine_tuned(options)
    (tmp_path / "fine_tuned.yaml").unlink()
    with pytest.raises(SystemExit, match="expected another --folder"):
        fine_tuned(options)
    assert len(trained) == 1


def test_about_a_quarter_of_the_words_that_are_learned_from_are_right():
    """As `docs/asynchronous-rl.md` says."""
    records = reversed_words()
    assert round(sum(one["completion"] == one["answer"] for one in records) / len(records), 2) == 0.27
