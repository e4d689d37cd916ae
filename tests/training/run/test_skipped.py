"""Steps whose loss or gradient is not finite leave no trace in the weights and are counted; too many end the run."""

import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.runtime import loss_scale
from jaxpar.train import main
from jaxpar.training.errors import TrainingError
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.training.monitor.test_anomaly_monitor import AnomalyRecorder, fit_with, poisoned
from tests.training.runs import MESH, fit, folder_of, run_config, saved_state, write_config


def fit_poisoned(config: Config, steps: Container[int], recorded: AnomalyRecorder | None = None) -> AnomalyRecorder:
    """Fit with an infinity in the loss mask of the batches of some steps."""
    return fit_with(config, poisoned(steps), recorded)


def test_a_skipped_step_is_counted_and_leaves_the_weights_as_they_were(tmp_path: Path):
    config = run_config(tmp_path, 5, parallel=MESH, checkpoint={"every": 1, "keep_last": 9})
    recorded = fit_poisoned(config, {3})
    assert [message for message in recorded.messages if "skipped" in message] == [
        "Step 3 skipped: loss nan, gradient norm nan.",
        "checkpoints/00000003 was saved after 1 skipped step; the last healthy checkpoint is checkpoints/00000002, and "
        "no checkpoint is deleted until a step is applied.",
    ]
    assert [record.skipped_steps for record in recorded.records] == [0, 0, 1, 1, 1]
    assert [np.isfinite(record.loss) for record in recorded.records] == [True, True, False, True, True]
    before, skipped, after = (saved_state(config, step) for step in (2, 3, 4))
    assert_same_bits((skipped.master, skipped.optimizer), (before.master, before.optimizer))
    assert (int(skipped.step), int(skipped.applied), int(skipped.skipped_in_row)) == (3, 2, 1)
    assert (int(after.step), int(after.applied), int(after.skipped_in_row)) == (4, 3, 0)
    assert recorded.records[3].learning_rate == recorded.records[2].learning_rate, "the schedule counts applied updates"
    assert '"loss": null' in (folder_of(config) / "metrics.jsonl").read_text().splitlines()[2]
    _, recorded = fit(run_config(tmp_path, 6, parallel=MESH))
    assert [record.skipped_steps for record in recorded.records] == [1], "counted also after a restart"


def test_too_many_skipped_steps_in_a_row_stop_the_run_with_a_diagnosis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = run_config(
        tmp_path,
        30,
        parallel=MESH,
        watch={"limits": {"skipped_steps": 3}},
        optimizer={"learning_rate": 1e30, "clip_norm": None, "warmup_steps": 1},
        checkpoint={"every": 1, "keep_last": 9},
    )
    assert main(["--config", str(write_config(config, tmp_path / "run.yaml"))]) == 1
    out, errors = capsys.readouterr()
    assert len(re.findall(r"^- Step \d+ skipped: loss \S+, gradient norm (?:nan|inf)\.$", out, re.MULTILINE)) == 3
    found = re.fullmatch(
        r"jaxpar: 3 steps in a row had a non-finite loss or gradient "
        r"\(only the gradient is not; learning rate 1e\+30\): "
        r"stopped at step (?P<step>\d+) with the weights of step (?P<good>\d+) unchanged "
        r"\(the newest checkpoint is (?P<where>.*)\); "
        r"lower optimizer.learning_rate, or look at the data of steps (?P<first>\d+) to (?P<last>\d+)\n",
        errors,
    )
    assert found is not None, errors
    last, good = int(found["step"]), int(found["good"])
    assert (int(found["first"]), int(found["last"]), good) == (last - 2, last, last - 3)
    newest = folder_of(config) / "checkpoints" / f"{last - 1:08d}"
    healthy = f"the last healthy checkpoint is checkpoints/{good:08d}"
    assert found["where"] == f"{newest}, which was saved after 2 skipped steps; {healthy}"
    assert_same_bits(saved_state(config, last - 1).master, saved_state(config, good).master)


def test_saves_of_skipped_steps_do_not_push_out_the_last_healthy_checkpoint(tmp_path: Path):
    def config(steps: int, most: int) -> Config:
        watch: dict[str, Any] = {"limits": {"skipped_steps": most}}
        return run_config(tmp_path, steps, parallel=MESH, watch=watch, checkpoint={"every": 2, "keep_last": 1})

    def saved() -> list[str]:
        return sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())

    healthy = "the last healthy checkpoint is checkpoints/00000004"
    with refused("5 steps in a row", "00000008", "4 skipped steps", "checkpoints/00000004", error=TrainingError):
        fit_poisoned(config(30, 5), range(5, 31), recorded := AnomalyRecorder())
    assert saved() == ["00000004", "00000006", "00000008"]
    reported = "; " + healthy + ", and no checkpoint is deleted until a step is applied."
    assert [message for message in recorded.messages if "healthy" in message] == [
        "checkpoints/00000006 was saved after 2 skipped steps" + reported,
        "checkpoints/00000008 was saved after 4 skipped steps" + reported,
    ]
    with refused("10 steps in a row", error=TrainingError):
        fit_poisoned(config(30, 10), range(5, 31), recorded := AnomalyRecorder())
    goes_on = "The run continues from checkpoints/00000008, which was saved after 4 skipped steps"
    assert recorded.messages[0] == f"{goes_on}; {healthy}; to go back to it, move the newer ones away."
    assert saved() == ["00000004", "00000006", "00000008", "00000010", "00000012"], "also after a restart"
    for name in saved()[1:]:
        (tmp_path / "run" / "checkpoints" / name).rename(tmp_path / name)
    summary, _ = fit(config(6, 5))
    assert np.isfinite(summary.loss)
    assert saved() == ["00000006"]


def test_a_single_good_step_restarts_the_count(tmp_path: Path):
    config = run_config(tmp_path, 8, parallel=MESH, watch={"limits": {"skipped_steps": 3}})
    recorded = fit_poisoned(config, {2, 3, 5, 6, 8})
    assert recorded.records[-1].skipped_steps == 5
    with refused("3 steps in a row", "nothing was saved", error=TrainingError):
        other = run_config(tmp_path / "other", 8, parallel=MESH, watch={"limits": {"skipped_steps": 3}})
        fit_poisoned(other, {2, 3, 4})


@pytest.mark.long
def test_float16_recovers_from_a_loss_scale_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**24)
    half = run_config(tmp_path / "half", 12, parallel=MESH, precision={"compute": "float16"})
    _, recorded = fit(half)
    skipped = [int(found[1]) for text in recorded.messages if (found := re.match(r"Step (\d+) skipped", text))]
    assert skipped[0] == 1
    assert len(skipped) <= 8
    assert [record.loss_scale for record in recorded.records] == [
        2.0 ** (24 - sum(step < record.step for step in skipped)) for record in recorded.records
    ]
    assert np.isfinite([record.loss for record in recorded.records]).all(), "only the gradients overflow"
    # In float32 with the same steps skipped.
    single = fit_poisoned(run_config(tmp_path / "single", 12, parallel=MESH), set(skipped))
    found, wanted = (
        [record.loss for record in run.records if record.step not in skipped] for run in (recorded, single)
    )
    assert found == pytest.approx(wanted, rel=1e-2)
    assert found[-1] < found[0]
