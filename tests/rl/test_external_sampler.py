"""A trainer whose answers another job draws: `python -m jaxpar.serve`, which may be killed and started anew."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.observe.writers.jsonl import read_metrics
from jaxpar.rl.run import RolloutRun
from jaxpar.rl.sampling import served
from jaxpar.rl.sampling.sampler import CurrentScores
from jaxpar.rl.sampling.served import ServedGenerator
from jaxpar.training.run.trainer import Trainer
from tests.rl.runs import config_of
from tests.rl.vllm_server import FakeVLLM, serving
from tests.sentences import refused
from tests.training.damage.test_kill import PATIENCE_S, finish
from tests.training.runs import MESH, folder_of, losses, start, write_config

pytestmark = pytest.mark.long


class Mortal(FakeVLLM):
    """Is gone for some requests after a number of completions, and then has been started anew."""

    def __init__(self, after: int, gone: int, **options: Any):
        super().__init__(14, **options)
        self.after, self.gone, self.starts, self.named = after, gone, 0, ""

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/completions" and "n" in body:
            self.after -= 1
            if not self.after:
                self.starts, self.named = 1, ""
                self.after = -1
                if not self.gone:
                    return 200, {"choices": [], "system_fingerprint": ""}
        if self.starts and self.gone:
            self.gone -= 1
            return 200, b""
        status, made = super().answer(path, body)
        if path == "/collective_rpc":
            self.named = body["kwargs"]["weights_path"]
        return status, made | {"system_fingerprint": self.named} if path == "/v1/completions" else made


def served_run(folder: Path, url: str, **sampler: Any) -> RolloutRun:
    asked = SamplerConfig(url=url, folder=str(folder / "shared"), **sampler)
    return RolloutRun(config_of(folder, 4, rl={"sampler": asked}), devices=jax.devices()[:1])


@pytest.mark.parametrize("gone", [0, 7])
def test_a_server_that_comes_back_gets_the_weights_and_the_requests_again(
    tmp_path: Path, gone: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Also one that was gone only between two requests: its answers name other weights."""
    monkeypatch.setattr(served, "PAUSE", 0.01)
    fake = Mortal(3, gone, scores=lambda row: np.full(len(row) - 1, -2.0))
    monkeypatch.setattr(CurrentScores, "scored", lambda *_: [np.full(len(run_fixed()), -2.0)])
    run_fixed = lambda: run._sampler._served._fixed.tokens  # pyright: ignore
    with serving(fake) as url:
        run = served_run(tmp_path, url)
        with closing(run.rewarder), closing(run._buffer):
            assert np.isfinite(run.step().loss)
            folders = [body["kwargs"]["weights_path"] for path, body in fake.asked if path == "/collective_rpc"]
    assert len(folders) >= 2 and len(set(folders)) == 1, "the same version"
    assert ["waiting for it, up to 600 s" in one.message for one in caplog.records].count(True) == 1
    assert any("is back after" in one.message for one in caplog.records)


def test_a_server_that_does_not_come_back_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(served, "PAUSE", 0.01)
    fake = Mortal(1, 10**9, scores=lambda row: np.full(len(row) - 1, -2.0))
    monkeypatch.setattr(CurrentScores, "scored", lambda *_: [np.full(len(run_fixed()), -2.0)])
    run_fixed = lambda: run._sampler._served._fixed.tokens  # pyright: ignore
    with serving(fake) as url:
        run = served_run(tmp_path, url, seconds=0.2)
        with closing(run.rewarder), refused("rl.sampler.url", "does not answer", "within 0.2 s (rl.sampler.seconds)"):
            run.step()


@contextmanager
def serve(model: Path, port: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A sampler in a process, once it answers."""
    command = [sys.executable, "-m", "jaxpar.serve", "--model", model, "--port", port, "--length", 64, "--slots", 16]
    command += ["--name", "policy", "--updates", folder / "shared", "--api-key-file", folder / "key"]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, env=os.environ | {"XLA_FLAGS": ""}
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("policy is served")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_run_goes_on_with_a_sampler_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its log-probabilities are those of the step to 1e-5, with the weights of each version, before and after."""
    first = config_of(tmp_path / "first", 1, data={"batch_size": 16})
    Trainer(first, devices=jax.devices()[:1]).fit([])
    (tmp_path / "key").write_text("sk-sampler")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    placed, sent = ServedGenerator.placed, list[Any]()

    def copied(generator: ServedGenerator, weights: Any) -> Any:
        sent.append(jax.tree.map(jnp.copy, weights))
        return placed(generator, weights)

    monkeypatch.setattr(ServedGenerator, "placed", copied)

    def check(run: RolloutRun) -> None:
        rollouts = run._experience.rollouts  # pyright: ignore
        scores = CurrentScores(run).scored(rollouts.answers, sent[rollouts.version])
        for answer, wanted in zip(rollouts.answers, scores, strict=True):
            np.testing.assert_allclose(answer.log_probabilities, wanted, atol=1e-5)

    model = folder_of(first)
    with serve(model, port, tmp_path) as process:
        run = served_run(tmp_path, f"http://127.0.0.1:{port}", key_file=str(tmp_path / "key"))
        with closing(run.rewarder), closing(run._buffer):
            for _ in range(2):
                run.step()
                check(run)
            process.send_signal(signal.SIGKILL)
            process.wait()
            again: list[Any] = []

            def start() -> None:
                time.sleep(1)
                again.append(serve(model, port, tmp_path))
                again[0].__enter__()

            thread = threading.Thread(target=start)
            thread.start()
            try:
                run.step()
                check(run)
            finally:
                thread.join()
                again[0].__exit__(None, None, None)
    assert len(sent) == 3, "a version a step"


def test_a_run_that_is_killed_while_its_server_waits_goes_on(tmp_path: Path):
    """kill -9 after `/pause` and the weights of the third version, before `/resume`: the same command continues."""
    first = config_of(tmp_path / "first", 1, data={"batch_size": 16})
    Trainer(first, devices=jax.devices()[:1]).fit([])
    (tmp_path / "key").write_text("sk-sampler")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = SamplerConfig(
        url=f"http://127.0.0.1:{port}", folder=str(tmp_path / "shared"), key_file=str(tmp_path / "key")
    )
    config = config_of(tmp_path, 4, parallel=MESH, rl={"sampler": asked}, checkpoint={"every": 1})
    file = write_config(config, tmp_path / "run.yaml")
    with serve(folder_of(first), port, tmp_path):
        killed = start(file, program="tests.rl.killed_in_update", environment={"UPDATE": "2"})
        _, errors = killed.communicate(timeout=PATIENCE_S)
        assert killed.returncode == -signal.SIGKILL, errors
        assert [*losses(config)] == [1, 2]
        assert "Continuing with step " in finish(file)  # 2 where the checkpoint of step 2 was not finished
    assert [*losses(config)] == [1, 2, 3, 4]
    records = read_metrics(folder_of(config) / "metrics.jsonl")
    assert all(one["metrics"]["mismatch_kl"] < 1e-6 for one in records), "the server has the weights of the step"
