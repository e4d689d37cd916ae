"""Jobs of two processes, one of which is killed (-9): the other names it, and the same command, given to another number
of processes, ends as a run that was left in peace."""

import random
import signal
import socket
from pathlib import Path

import pytest

from jaxpar.config import Config
from tests.data.preference_files import prepared_pairs
from tests.interop.folders import copy_of
from tests.patience import seconds
from tests.training.run.test_dpo_training import config_of
from tests.training.run.test_processes import PATIENCE_S, start_job
from tests.training.runs import MESH, fit, folder_of, losses, run_config

SOON_S = seconds(30)
"""Within which the other process has ended."""
STEPS = 6
PLACES = {
    "restoring a checkpoint": 0.5,
    "evaluating after step 4": 0.1,
    "saving step 4": 0.15,
    "finishing": 0.03,
    "computing log-probabilities": 0.5,
}
"""Places of a run, and seconds that it spends at each at least."""


def on_text(folder: Path, steps: int = STEPS) -> Config:
    evaluation = {"every": 2, "batches": 2, "sample_tokens": 8}
    return run_config(folder, steps, parallel=MESH, evaluation=evaluation, checkpoint={"every": 2})


def on_pairs(folder: Path) -> Config:
    """A run whose reference nobody has computed yet."""
    folder.mkdir()
    base, pairs = copy_of("llama", folder / "base"), prepared_pairs(folder / "pairs").path
    return config_of(base, pairs, **{"run.steps": STEPS, "checkpoint.every": 2, "parallel.fsdp": 2})


def kill(config: Config, folder: Path, place: str, draw: random.Random) -> None:
    """Start a job of two processes, one of which is killed at a moment of the time that it spends at a place."""
    victim, after_s = draw.randrange(2), draw.uniform(0, PLACES[place])
    how = {"PLACE": place, "VICTIM": str(victim), "AFTER": str(after_s)}
    job = start_job(config, folder / "job.yaml", 2, program="tests.training.damage.killed_at", environment=how)
    try:
        said = job[victim].communicate(timeout=PATIENCE_S)
        assert job[victim].returncode == -signal.SIGKILL, "".join(said)[-3000:]
        _, errors = job[1 - victim].communicate(timeout=SOON_S)
    finally:
        for process in job:
            process.kill()
            process.communicate()
    assert job[1 - victim].returncode == 1 and "Traceback" not in errors, errors
    assert errors.splitlines()[-1].startswith(f"jaxpar: process {victim} on {socket.gethostname()} died (it was ")


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_a_job_of_which_a_process_was_killed_goes_on_in_one_process(tmp_path: Path, place: str, seed: int):
    pairs = place.startswith("computing")
    config, peaceful = ((on_pairs if pairs else on_text)(tmp_path / name) for name in ("killed", "peaceful"))
    if place.startswith("restoring"):
        fit(on_text(tmp_path / "killed", 2))
    kill(config, tmp_path, place, random.Random(f"{place} {seed}"))
    summary, _ = fit(config)
    wanted, _ = fit(peaceful)
    assert (summary.steps, summary.eval_loss is None, wanted.eval_loss is None) == (STEPS, pairs, pairs)
    assert pairs or summary.eval_loss == pytest.approx(wanted.eval_loss, rel=1e-5)
    assert list(losses(config)) == list(range(1, STEPS + 1))
    assert losses(config) == pytest.approx(losses(peaceful), rel=1e-5)
    assert sorted(path.name for path in (folder_of(config) / "checkpoints").glob("0*6")) == [f"{STEPS:08d}"]
