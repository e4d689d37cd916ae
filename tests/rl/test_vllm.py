"""Answers of a vLLM server: its exchange, as it was recorded, and runs that learn from what it draws."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxpar.config.mappings.sampler import SamplerConfig
from jaxpar.layout.checks.validate import validate
from jaxpar.rl.answers import Answer
from jaxpar.rl.prompts import Prompt
from jaxpar.rl.run import RolloutRun
from jaxpar.rl.sampling.sampler import CurrentScores
from jaxpar.rl.sampling.served import ServedGenerator
from jaxpar.rl.sampling.vllm import VLLMServer
from tests.rl.test_rollouts import config_of
from tests.rl.vllm_server import FakeVLLM, serving
from tests.sentences import refused

RECORDED = json.loads(Path(__file__).with_name("vllm_exchange.json").read_text())
"""Requests to vLLM 0.32 on a CPU, and its answers."""


def test_the_client_reads_what_a_real_server_answered():
    """The same requests, and what they say."""
    *entries, scored = RECORDED
    fake = FakeVLLM(0)
    fake.replay = {one["path"]: one["answer"] for one in entries}
    wanted = {one["path"]: one["body"] for one in entries}
    with serving(fake) as url:
        server = VLLMServer(url)
        assert server.model == "policy"
        server.reload(wanted["/collective_rpc"]["kwargs"]["weights_path"])
        asked = wanted["/v1/completions"]
        drawn = server.completions(
            asked["prompt"], answers=asked["n"], tokens=asked["max_tokens"], temperature=1.0, seed=asked["seed"],
            stop=asked["stop_token_ids"],
        )  # fmt: skip
        fake.replay["/v1/completions"] = scored["answer"]
        scores = server.scores(scored["body"]["prompt"])
    assert fake.asked == [(one["path"], one["body"]) for one in RECORDED]
    assert [one.tokens for one in drawn] == [[11, 10, 3], [12, 11, 7, 10, 8, 0]]
    assert [one.ended for one in drawn] == [True, False]
    np.testing.assert_allclose(drawn[0].log_probabilities, [-2.8333, -2.9896, -2.4519], atol=1e-4)
    np.testing.assert_allclose(scores, [-2.5247, -2.5687, -2.6634, -2.9373], atol=1e-4)


def served_config(folder: Path, url: str, **rl: Any) -> Any:
    sampler = SamplerConfig(url=url, folder=str(folder / "shared"))
    return config_of(folder, 4, rl={"sampler": sampler} | rl)


@pytest.mark.matrix(quick=("sync",), ci=1)
@pytest.mark.parametrize("mode", ["sync", "one_step_off"])
def test_a_run_learns_from_answers_of_a_server_with_its_weights(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
):
    """Each version is written once and checked; the log-probabilities of answers are the step's. What another run of
    that name left in the folder stays."""
    fake = FakeVLLM(14)
    other = tmp_path / "shared" / f"{served_config(tmp_path, 'http://x').run.name}-0" / "model.safetensors"
    other.parent.mkdir(parents=True)
    other.write_text("of another run")
    with serving(fake) as url:
        run = RolloutRun(served_config(tmp_path, url, mode=mode), devices=jax.devices()[:1])
        score, lock, sent = CurrentScores(run), threading.Lock(), list[Any]()
        placed = ServedGenerator.placed

        def copied(served: ServedGenerator, weights: Any) -> Any:
            sent.append(jax.tree.map(jnp.copy, weights))
            return placed(served, weights)

        def scores(row: Sequence[int]) -> np.ndarray:
            loaded = sum(path == "/resume" for path, _ in fake.asked)
            answer = Answer(Prompt((row[0],), {}), tuple(row[1:]), np.zeros(len(row) - 1), ended=False)
            with lock:
                return score.scored([answer], sent[loaded - 1])[0]

        monkeypatch.setattr(ServedGenerator, "placed", copied)
        fake.scores = scores
        with closing(run.rewarder), closing(run._buffer):
            metrics = [run.step() for _ in range(3)]
            folders = [body["kwargs"]["weights_path"] for path, body in fake.asked if path == "/collective_rpc"]
            assert len(folders) == len(set(folders)) >= 2
            assert ("by " + url) in run.brief()[0][1]
    assert other.read_text() == "of another run"
    if mode == "sync":
        assert all(float(one.report["mismatch_kl"]) < 1e-6 for one in metrics)
        paths = [path for path, _ in fake.asked]
        assert paths[:4] == ["/v1/models", "/pause?mode=wait", "/collective_rpc", "/resume"]
        files = list(Path(folders[-1]).glob("*.safetensors"))
        assert len(files) == 1 and not Path(folders[0]).exists(), "an older version is removed"
        tensors = load_file(files[0])
        assert tensors["model.layers.1.mlp.up_proj.weight"].shape[0] == run.config.model.mlp


def test_a_server_that_has_other_weights_is_refused(tmp_path: Path):
    fake = FakeVLLM(14, lambda row: np.full(len(row) - 1, -9.0))
    with serving(fake) as url:
        run = RolloutRun(served_config(tmp_path, url), devices=jax.devices()[:1])
        with closing(run.rewarder), refused("after an update", "nats a token from the run's", "the same model"):
            run.step()


@pytest.mark.parametrize(
    ("replay", "parts"),
    [
        ({"/v1/models": {"data": []}}, ("/v1/models answers", "what a vLLM server does")),
        ({"/v1/models": "<html>"}, ("<html>", "what a vLLM server does")),
        ({"/pause?mode=wait": 404}, ("/pause?mode=wait answers 404", "VLLM_SERVER_DEV_MODE=1")),
        ({"/collective_rpc": 500}, ("/collective_rpc answers 500",)),
        ({"/v1/completions": {"choices": [{}]}}, ("/v1/completions answers", "what a vLLM server does")),
    ],
)
def test_a_server_that_answers_otherwise_is_refused(replay: dict[str, Any], parts: tuple[str, ...]):
    fake = FakeVLLM(4)
    fake.replay = replay
    with serving(fake) as url, refused("rl.sampler.url", *parts):
        server = VLLMServer(url)
        server.reload("/tmp/weights")
        server.completions([1, 2], answers=1, tokens=1, temperature=1.0, seed=0, stop=[])


def test_a_dead_server_is_refused():
    with serving(FakeVLLM(4)) as url:
        pass
    with refused("rl.sampler.url", url, "does not answer", "expected a vLLM server"):
        VLLMServer(url)


@pytest.mark.parametrize(
    ("sampler", "rl", "parts"),
    [
        ({"url": "localhost:8000", "folder": "a"}, {}, ("rl.sampler.url", "localhost:8000", "http://127.0.0.1")),
        ({"url": "http://x:port", "folder": "a"}, {}, ("rl.sampler.url", "http://x:port")),
        ({"url": "http://x"}, {}, ("rl.sampler.url without rl.sampler.folder",)),
        ({"folder": "a"}, {}, ("rl.sampler.folder without rl.sampler.url",)),
        ({"url": "http://x", "folder": "a", "tensor": 2}, {}, ("a layout of its own",)),
        ({"url": "http://x", "folder": "a"}, {"temperature": 0.5}, ("rl.temperature: 0.5", "expected 1")),
    ],
)
def test_settings_that_no_server_has_are_refused(
    tmp_path: Path, sampler: dict[str, Any], rl: dict[str, Any], parts: tuple[str, ...]
):
    with refused(*parts):
        validate(config_of(tmp_path, 1, rl={"sampler": SamplerConfig(**sampler)} | rl))


def test_adapters_are_refused_with_a_server(tmp_path: Path):
    sampler = SamplerConfig(url="http://x", folder="a")
    config = config_of(tmp_path, 1, rl={"sampler": sampler}, lora={"rank": 2}, run={"init_from": str(tmp_path)})
    with refused("lora.rank: 2 with rl.sampler.url", "expected null"):
        validate(config)
