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
from jaxpar.rl.sampling import vllm
from jaxpar.rl.sampling.sampler import CurrentScores
from jaxpar.rl.sampling.served import ServedGenerator
from jaxpar.rl.sampling.vllm import VLLMServer
from tests.rl.runs import config_of
from tests.rl.vllm_server import FakeVLLM, serving
from tests.sentences import refused

RECORDED = json.loads(Path(__file__).with_name("vllm_exchange.json").read_text())
"""Requests to vLLM 0.32 on a CPU, and its answers."""


def test_the_client_reads_what_a_real_server_answered():
    """The same requests, and what they say. Draws also ask for none of the server's settings."""
    neutral = {
        "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0,
    }  # fmt: skip
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
            asked["prompt"], vocab=14, answers=asked["n"], tokens=asked["max_tokens"], temperature=1.0,
            seed=asked["seed"], stop=asked["stop_token_ids"],
        )  # fmt: skip
        fake.replay["/v1/completions"] = scored["answer"]
        scores = server.scores(scored["body"]["prompt"])
    recorded = [(one["path"], one["body"]) for one in RECORDED]
    assert fake.asked == [(path, body | neutral if body and "n" in body else body) for path, body in recorded]
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
        server.completions([1, 2], vocab=4, answers=1, tokens=1, temperature=1.0, seed=0, stop=[])


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [], "logprobs": {"token_logprobs": []}}, {"token_ids": [4]}, {"token_ids": [-1]},
        {"token_ids": ["1"]}, {"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0, -1.0]}},
        {"logprobs": {"token_logprobs": [None]}}, {"logprobs": {"token_logprobs": [-float("inf")]}},
        {"logprobs": {"token_logprobs": [-1.0, -1.0]}}, {"finish_reason": "stop"}, {"finish_reason": "abort"},
    ],
)  # fmt: skip
def test_answers_that_no_model_draws_are_refused(choice: dict[str, Any]):
    fake = FakeVLLM(4)
    good = {"index": 0, "token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
    with serving(fake) as url:
        server = VLLMServer(url)
        ask = lambda: server.completions([1], vocab=4, answers=1, tokens=1, temperature=1.0, seed=0, stop=[3])
        fake.replay = {"/v1/completions": {"choices": [good]}}
        assert ask()[0].tokens == [1]
        fake.replay = {"/v1/completions": {"choices": [good | choice]}}
        with refused("/v1/completions answers", "what a vLLM server does"):
            ask()


def test_scores_that_are_no_numbers_are_refused():
    fake = FakeVLLM(4)
    fake.replay = {"/v1/completions": {"choices": [{"prompt_logprobs": [None, {"2": {"logprob": None}}]}]}}
    with serving(fake) as url, refused("/v1/completions answers"):
        VLLMServer(url).scores([1, 2])


@pytest.mark.parametrize(
    ("sent", "parts"),
    [
        (b"nonsense\r\n\r\n", ("does not answer", "nonsense", "expected jaxpar.serve or a vLLM server")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", ("does not answer", "IncompleteRead")),
        (b"", ("does not answer", "closed connection")),
    ],
)
def test_a_server_of_another_protocol_is_refused(sent: bytes, parts: tuple[str, ...]):
    fake = FakeVLLM(4)
    fake.replay = {"/v1/models": sent}
    with serving(fake) as url, refused("rl.sampler.url", *parts):
        VLLMServer(url)


@pytest.mark.parametrize("url", ["http://a b:8000", f"http://{'a' * 70}:8000"])
def test_an_address_that_no_host_has_is_refused(url: str):
    with refused("rl.sampler.url", "does not answer"):
        VLLMServer(url)


def test_no_other_machine_gets_what_a_server_is_asked(monkeypatch: pytest.MonkeyPatch):
    """Neither one that it redirects to, nor a proxy."""
    fake, other = FakeVLLM(4), FakeVLLM(4)
    with serving(other) as elsewhere, serving(fake) as url:
        monkeypatch.setenv("http_proxy", elsewhere)
        monkeypatch.setenv("no_proxy", "")
        assert VLLMServer(url).model == "policy"
        moved = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}/v1/models\r\nContent-Length: 0\r\n\r\n"
        fake.replay = {"/v1/models": moved.encode()}
        with refused("/v1/models answers 302"):
            VLLMServer(url)
    assert not other.asked


def test_the_first_error_is_told_where_a_server_cannot_go_on_either():
    fake = FakeVLLM(4)
    fake.replay = {"/collective_rpc": 500, "/resume": 503}
    with serving(fake) as url, refused("/collective_rpc answers 500"):
        VLLMServer(url).reload("/tmp/weights")
    assert fake.asked[-1][0] == "/resume"


def test_a_server_whose_queue_is_full_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vllm, "FULL", 0.01)
    fake = FakeVLLM(4)
    full = b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\n{}"
    answers, answer = [full, full], fake.answer
    monkeypatch.setattr(fake, "answer", lambda *asked: (200, answers.pop()) if answers else answer(*asked))
    with serving(fake) as url:
        assert VLLMServer(url).model == "policy"
    assert not answers


def test_a_dead_server_is_refused():
    with serving(FakeVLLM(4)) as url:
        pass
    with refused("rl.sampler.url", url, "does not answer", "expected jaxpar.serve or a vLLM server"):
        VLLMServer(url)


@pytest.mark.parametrize(
    ("sampler", "rl", "parts"),
    [
        ({"url": "localhost:8000", "folder": "a"}, {}, ("rl.sampler.url", "localhost:8000", "http://127.0.0.1")),
        ({"url": "http://x:port", "folder": "a"}, {}, ("rl.sampler.url", "http://x:port")),
        ({"url": "http://x"}, {}, ("rl.sampler.url without rl.sampler.folder",)),
        ({"folder": "a"}, {}, ("rl.sampler.folder without rl.sampler.url",)),
        ({"key_file": "a"}, {}, ("rl.sampler.key_file without rl.sampler.url",)),
        ({"seconds": 5.0}, {}, ("rl.sampler.seconds without rl.sampler.url",)),
        ({"url": "http://x", "folder": "a", "tensor": 2}, {}, ("a layout of its own",)),
        ({"url": "http://x", "folder": "a"}, {"temperature": 0.5}, ("rl.temperature: 0.5", "expected 1")),
        ({"url": "http://x", "folder": "a"}, {"environment": "calculator"}, ("rl.environment: 'calculator'", "null")),
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
