"""Jobs of two processes whose answers a server draws: process 0 alone talks to it."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.observe.writers.jsonl import read_metrics
from jaxpar.training.run.trainer import Trainer
from tests.patience import seconds
from tests.rl.runs import config_of
from tests.rl.test_external_sampler import serve
from tests.rl.vllm_server import FakeVLLM, serving
from tests.training.run.test_processes import PATIENCE_S, free_port, outputs, start_job
from tests.training.runs import MESH, folder_of, losses, start, write_config

pytestmark = pytest.mark.long
STEPS = 4


def served_config(folder: Path, sampler: SamplerConfig, mode: str = "sync", steps: int = STEPS, **rl: Any) -> Config:
    """A run on eight devices whose answers a server draws, saved after each step."""
    evaluation = {"every": 2, "batches": 1}
    rl = {"sampler": sampler, "mode": mode} | rl
    return config_of(folder, steps, parallel=MESH, rl=rl, checkpoint={"every": 1}, evaluation=evaluation)


class Served(NamedTuple):
    """`python -m jaxpar.serve` in a process of its own."""

    sampler: SamplerConfig
    alone: Callable[[str], Config]
    """The run of one process in a mode, at its end."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "key").write_text("sk-sampler")
    first = config_of(folder / "first", 1, data={"batch_size": 16})
    Trainer(first, devices=jax.devices()[:1]).fit([])
    port = free_port()
    sampler = SamplerConfig(
        url=f"http://127.0.0.1:{port}", folder=str(folder / "shared"), key_file=str(folder / "key"), seconds=60.0
    )

    @cache
    def alone(mode: str) -> Config:
        config = served_config(folder / mode, sampler, mode)
        process = start(write_config(config, folder / f"{mode}.yaml"))
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        return config

    with serve(folder_of(first), port, folder):
        yield Served(sampler, alone)


def recorded(config: Config, *names: str) -> list[list[float]]:
    """Metrics of each step."""
    return [[one["metrics"][name] for name in names] for one in read_metrics(folder_of(config) / "metrics.jsonl")]


def check_equal(config: Config, alone: Config) -> None:
    """The same answers and rewards, and losses that differ by rounding."""
    assert [*losses(config)] == list(range(1, STEPS + 1))
    assert losses(config) == pytest.approx(losses(alone), rel=1e-5, abs=1e-7)
    names = ("reward", "reward_spread", "answer_tokens", "truncated", "staleness", "dropped")
    assert recorded(config, *names) == recorded(alone, *names)
    ended, wanted = (json.loads((folder_of(run) / "summary.json").read_text()) for run in (config, alone))
    assert ended["eval_loss"] == pytest.approx(wanted["eval_loss"], rel=1e-5)


@pytest.mark.parametrize("mode", ["sync", "one_step_off"])
def test_two_processes_learn_from_a_servers_answers_as_one_does(tmp_path: Path, served: Served, mode: str):
    config, alone = served_config(tmp_path, served.sampler, mode), served.alone(mode)
    shared = Path(str(served.sampler.folder))
    before = {*shared.iterdir()}
    done = outputs(start_job(config, tmp_path / "job.yaml", 2))
    assert [code for code, _, _ in done] == [0, 0], done
    check_equal(config, alone)
    assert mode != "sync" or all(mismatch < 1e-6 for [mismatch] in recorded(config, "mismatch_kl"))
    assert {*shared.iterdir()} == before, "no version is left"


@pytest.mark.parametrize(("victim", "mode"), [(0, "one_step_off"), (1, "sync")])
def test_a_job_of_which_a_process_was_killed_goes_on_as_if_it_was_not(
    tmp_path: Path, served: Served, victim: int, mode: str
):
    """Process 0 is killed (-9) while the server waits for its weights, process 1 while answers are drawn."""
    config, alone = served_config(tmp_path, served.sampler, mode), served.alone(mode)
    how: dict[str, Any] = (
        {"program": "tests.training.damage.killed_at",
         "environment": {"PLACE": "drawing answers", "VICTIM": "1", "AFTER": "0.2", "TIME": "3"}}
        if victim
        else {"program": "tests.rl.killed_in_update", "environment": {"UPDATE": "2"}}
    )  # fmt: skip
    job = start_job(config, tmp_path / "job.yaml", 2, **how)
    try:
        _, errors = job[victim].communicate(timeout=PATIENCE_S)
        assert job[victim].returncode == -signal.SIGKILL, errors
        _, errors = job[1 - victim].communicate(timeout=seconds(30))
    finally:
        for process in job:
            process.kill()
            process.communicate()
    assert job[1 - victim].returncode == 1 and "Traceback" not in errors, errors
    assert errors.splitlines()[-1].startswith(f"jaxpar: process {victim} on {socket.gethostname()} died (it was ")
    done = outputs(start_job(config, tmp_path / "job.yaml", 2))
    assert [code for code, _, _ in done] == [0, 0], done
    assert "Continuing with step " in done[0][1] or victim
    check_equal(config, alone)


RAISING = """
def failing(prompts, completions, **columns):
    raise OSError("no such scale")
"""
REFUSED = {
    "no server": ("rl.sampler.url: http://127.0.0.1:", "does not answer"),
    "a server that is gone": ("rl.sampler.url", "/pause?mode=wait", "did not within 0.2 s (rl.sampler.seconds)"),
    "a server with other weights": ("after an update the server's log-probabilities of a prompt are ",),
    "a folder that is a file": ("rl.sampler.folder", "cannot be written"),
    "a reward that raises": ("failing", "no such scale"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_fails_on_process_0_ends_both_in_the_same_sentence(tmp_path: Path, served: Served, what: str):
    """Whether it fails before the first step, while weights are written, or in the thread that draws."""
    fake, rl = FakeVLLM(14, lambda row: np.full(len(row) - 1, -9.0)), dict[str, Any]()
    (tmp_path / "file").write_text("")
    (tmp_path / "rewards.py").write_text(RAISING)
    if what == "a server that is gone":
        fake.replay = {"/pause?mode=wait": 503}
    if what == "a reward that raises":
        rl = {"rewards": {f"{tmp_path / 'rewards.py'}:failing": 1.0}, "on_reward_error": "stop"}
    folder = tmp_path / ("file" if what == "a folder that is a file" else "shared")
    with serving(fake) as url:
        url = f"http://127.0.0.1:{free_port()}" if what == "no server" else url
        asked = SamplerConfig(url=url, folder=str(folder), seconds=0.2)
        config = served_config(tmp_path, served.sampler if rl else asked, "one_step_off", **rl)
        done = outputs(start_job(config, tmp_path / "job.yaml", 2))
    ends = [errors.splitlines()[-1] for _, _, errors in done]
    assert ends[0] == ends[1] and all(part in ends[0] for part in ("jaxpar: ", *REFUSED[what])), done
    assert all(code in (1, 2) and "Traceback" not in errors for code, _, errors in done), done
