"""The training command that is ended by a signal: given again, it makes the run that was never stopped."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from jaxpar.config import Config
from tests.patience import seconds
from tests.same_bits import assert_same_bits
from tests.training.runs import MESH, fit, folder_of, losses, run_config, saved_state, start, write_config

PATIENCE_S = seconds(240)


def killed_after(config: Config, file: Path, lines: int, delay_s: float) -> bool:
    """Start the command and kill it `delay_s` after it has logged so many lines; whether it was killed in time."""
    metrics = folder_of(config) / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    with start(file) as process:
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and not _logged(metrics, before, lines):
            assert time.monotonic() < deadline, "the run does not get on"
            time.sleep(0.005)
        time.sleep(delay_s)
        process.kill()
        process.communicate()
    return process.returncode != 0


def _logged(metrics: Path, before: int, lines: int) -> bool:
    """Whether the new process has taken the file over, and it has at least that many lines."""
    return metrics.exists() and metrics.stat().st_mtime_ns > before and metrics.read_text().count("\n") >= lines


def finish(file: Path) -> str:
    """Give the command until it ends; what it says."""
    with start(file) as process:
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return out


@pytest.mark.long
@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_the_command_ends_with_code_0_on_a_signal_and_goes_on_when_given_again(
    tmp_path: Path, number: signal.Signals, name: str
):
    config = run_config(tmp_path, 200, parallel=MESH, optimizer={"decay_steps": 300})
    file = write_config(config, tmp_path / "run.yaml")
    metrics = folder_of(config) / "metrics.jsonl"
    with start(file) as process:
        while process.poll() is None and not _logged(metrics, 0, 5):
            time.sleep(0.005)
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    [stopped] = map(int, re.findall(rf"- Stopped by {name} after step (\d+) of 200.* the same command continues", out))
    assert 5 <= stopped < 200
    assert (folder_of(config) / "checkpoints" / f"{stopped:08d}").is_dir()
    assert f"Continuing with step {stopped + 1} of 200" in finish(file)
    fit(whole := run_config(tmp_path / "whole", 200, parallel=MESH, optimizer={"decay_steps": 300}))
    found = losses(config)
    assert found == losses(whole) and list(found) == list(range(1, 201))
    assert_same_bits(saved_state(config, 200), saved_state(whole, 200))
    summary = json.loads((folder_of(config) / "summary.json").read_text())
    assert (summary["steps"], summary["loss"]) == (200, found[200])
