"""`checkpoint.every_minutes`: when a save is due, and that all processes of a job save after the same step."""

from pathlib import Path

import pytest

from jaxpar.training.run_folder.save_clock import SaveClock
from tests.training.run.test_processes import outputs, start_job
from tests.training.runs import MESH, fit, folder_of, run_config

ALWAYS = 1e-9
"""Minutes that are over at every look."""


class Steps:
    """Steps beside a clock that is set by hand."""

    def __init__(self, minutes: float | None, first: int = 1) -> None:
        self.now = 100.0
        self.clock = SaveClock(minutes, lambda: self.now)
        self.clock.start(first)

    def take(self, steps: range, step_s: float) -> tuple[list[int], list[int]]:
        """The steps with a look, and those with a save."""
        looks, saves = [], []
        for step in steps:
            self.now += step_s
            if self.clock.looks(step):
                looks.append(step)
            if self.clock.due(step):
                saves.append(step)
                self.clock.saved()
        return looks, saves


def test_a_save_is_due_when_the_minutes_are_over_and_looks_are_a_minute_apart():
    looks, saves = Steps(15).take(range(1, 4001), step_s=0.5)
    assert saves == [1800, 3600]
    assert len(looks) <= 4000 * 0.5 / 60 + 3


def test_the_minutes_count_from_the_last_save_and_in_steps_that_have_become_slower():
    steps = Steps(15, first=101)
    steps.take(range(101, 1301), step_s=0.5)
    steps.clock.saved()  # by checkpoint.every
    _, saves = steps.take(range(1301, 1701), step_s=5.0)
    # Up to 120 steps pass until the clock is looked at again, and the steps turn out to be slower.
    assert 1301 + 900 / 5 - 1 <= saves[0] <= 1301 + 900 / 5 + 12


def test_a_step_longer_than_a_minute_is_followed_by_a_look():
    assert Steps(5).take(range(1, 12), step_s=100.0) == (list(range(2, 12)), [3, 6, 9])


@pytest.mark.parametrize("minutes", [None, 0, 0.0])
def test_null_and_0_turn_it_off(minutes: float | None):
    assert Steps(minutes).take(range(1, 50), step_s=1e5) == ([], [])


def test_after_a_rollback_looks_start_over():
    steps = Steps(15)
    steps.take(range(1, 901), step_s=1.0)
    steps.clock.restart(801)
    assert steps.take(range(801, 900), step_s=1.0)[0][0] == 802


def test_saves_by_the_clock_are_logged_and_pruned_like_the_others(tmp_path: Path):
    config = run_config(
        tmp_path, 7, parallel=MESH, run={"log_every": 100}, checkpoint={"every_minutes": ALWAYS, "keep_last": 2}
    )
    _, recorded = fit(config)
    # The first look comes after the second step, and each one is followed by another at the next step.
    assert recorded.saves == [2, 3, 4, 5, 6, 7]
    assert [record.step for record in recorded.records] == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(path.name for path in (folder_of(config) / "checkpoints").iterdir()) == ["00000006", "00000007"]
    _, recorded = fit(run_config(tmp_path / "never", 7, parallel=MESH, checkpoint={"every_minutes": None}))
    assert recorded.saves == [7]


@pytest.mark.long
def test_process_0_decides_for_all(tmp_path: Path):
    config = run_config(tmp_path, 6, parallel=MESH, checkpoint={"every_minutes": ALWAYS, "keep_last": 9})
    done = outputs(start_job(config, tmp_path / "job.yaml", 2, program="tests.training.run.one_clock"))
    assert [code for code, _, _ in done] == [0, 0], done
    assert [step for step in range(1, 7) if f"saved checkpoints/{step:08d}" in done[0][1]] == [2, 3, 4, 5, 6]
