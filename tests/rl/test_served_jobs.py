"""Jobs of two processes whose answers a server draws, `python -m jaxpar.serve`: process 0 alone talks to it."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.observe.writers.jsonl import read_metrics
from jaxpar.training.run.trainer import Trainer
from tests.rl.runs import config_of
from tests.rl.test_external_sampler import serve
from tests.rl.vllm_server import FakeVLLM, serving
from tests.same_bits import assert_same_bits
from tests.training.run.test_processes import PATIENCE_S, outputs, start_job
from tests.training.runs import MESH, folder_of, losses, saved_state, start, write_config

pytestmark = pytest.mark.long


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def served_config(folder: Path, name: str, port: int, steps: int, **sections: Any) -> Config:
    """A run in `folder / name` whose answers the server at `port` draws; each step is saved."""
    sampler = SamplerConfig(
        url=f"http://127.0.0.1:{port}", folder=str(folder / "shared"), key_file=str(folder / "key"),
        seconds=sections.pop("seconds", 60.0),
    )  # fmt: skip
    rl = {"sampler": sampler} | sections.pop("rl", {})
    return config_of(folder / name, steps, parallel=MESH, rl=rl, checkpoint={"every": 1}, **sections)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A run with a checkpoint of the model that is served; the server's key is beside it."""
    (tmp_path / "key").write_text("sk-sampler")
    first = config_of(tmp_path / "first", 1, data={"batch_size": 16})
    Trainer(first, devices=jax.devices()[:1]).fit([])
    return folder_of(first)


def finish_alone(config: Config, file: Path) -> None:
    """Train in one process of eight devices."""
    process = start(write_config(config, file))
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors


def recorded(config: Config, *names: str) -> list[list[float]]:
    """Metrics of each step."""
    return [[one["metrics"][name] for name in names] for one in read_metrics(folder_of(config) / "metrics.jsonl")]


@pytest.mark.parametrize("mode", ["sync", "one_step_off"])
def test_two_processes_learn_from_a_servers_answers_as_one_does(tmp_path: Path, model: Path, mode: str):
    """The same answers and rewards, the same losses, and evaluations between. Then one process goes on, and two."""
    sections: dict[str, Any] = {"rl": {"mode": mode}, "evaluation": {"every": 2, "batches": 1}}
    port = free_port()
    with serve(model, port, tmp_path):
        one, two = (served_config(tmp_path, name, port, 4, **sections) for name in ("one", "two"))
        finish_alone(one, tmp_path / "one.yaml")
        done = outputs(start_job(two, tmp_path / "two.yaml", 2))
        assert [code for code, _, _ in done] == [0, 0], done
        assert losses(two) == pytest.approx(losses(one), rel=1e-5)
        names = ("reward", "answer_tokens", "truncated", "staleness", "dropped")
        assert recorded(two, *names) == recorded(one, *names)
        assert all(mismatch < 1e-6 for [mismatch] in recorded(two, "mismatch_kl")[: 4 if mode == "sync" else 1])
        summaries = [json.loads((folder_of(run) / "summary.json").read_text()) for run in (one, two)]
        assert summaries[1]["eval_loss"] == pytest.approx(summaries[0]["eval_loss"], rel=1e-5)
        finish_alone(served_config(tmp_path, "two", port, 5, **sections), tmp_path / "two.yaml")
        done = outputs(start_job(served_config(tmp_path, "one", port, 5, **sections), tmp_path / "one.yaml", 2))
        assert [code for code, _, _ in done] == [0, 0], done
    assert losses(two) == pytest.approx(losses(one), rel=1e-5) and [*losses(two)] == [1, 2, 3, 4, 5]
    assert list((tmp_path / "shared").iterdir()) == [], "no version is left"
