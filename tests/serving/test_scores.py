"""A trainer gets scores of prompts, and refusals where its requests would be ignored."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.serving.app import Server
from jaxpar.serving.updates import Updates
from tests.serving.served import control, encode

SCORED = {"model": "tiny", "prompt": ["ab", "def"], "max_tokens": 1, "n": 2, "prompt_logprobs": 0}


def test_a_prompt_is_scored_once_by_the_weights_that_drew_its_answers(server: Server, tmp_path: Path):
    prompts = list[list[int]]()

    def score(prompt: Sequence[int], adapter: int) -> np.ndarray:
        prompts.append([*prompt])
        if new:
            server.worker.version = new
        return np.arange(1.0, len(prompt))

    new = ""
    one = replace(server, score=score, updates=Updates(tmp_path, server.worker, lambda folder: None))
    (answer,) = control(one, ("/v1/completions", SCORED))
    likely = [
        [None, *({str(token): {"logprob": at + 1.0}} for at, token in enumerate(encode(text)))] for text in ("b", "ef")
    ]
    assert [choice["prompt_logprobs"] for choice in answer.json()["choices"]] == [likely[0]] * 2 + [likely[1]] * 2
    assert prompts == [encode("ab"), encode("def")]
    new = "later"
    (answer,) = control(one, ("/v1/completions", SCORED))
    assert answer.status_code == 409 and "new weights" in answer.json()["error"]["message"]
    server.worker.version, new = None, ""


def test_scores_have_to_come_in_time(server: Server):
    go = threading.Event()
    slow = replace(server, seconds=0.5, score=lambda prompt, adapter: np.zeros(len(prompt) - 1 + (not go.wait(60))))
    (answer,) = control(slow, ("/v1/completions", SCORED))
    go.set()
    assert answer.status_code == 504 and "0.5 s" in answer.json()["error"]["message"]
    assert server.worker.call(lambda: 5).result(60) == 5


def test_requests_of_trainers_that_would_be_ignored_are_refused(server: Server, tmp_path: Path):
    (tmp_path / "one").mkdir()
    read = list[Path]()
    updated = replace(server, updates=Updates(tmp_path, server.worker, read.append))
    load = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "one")}}
    wrong: list[tuple[str, Any, str]] = [
        ("/pause?mode=wait&clear_cach=true", {}, "did you mean clear_cache?"),
        ("/pause?mode=wait&clear_cache=false", {}, "clear_cache: got 'false'; expected true"),
        ("/pause?mode=wait", {"mode": "abort"}, "mode: this endpoint has no such field; expected none"),
        ("/pause", {}, "mode: got None; expected wait"),
        ("/resume?now=1", {}, "now: this endpoint has no such field; expected none"),
        ("/collective_rpc", load | {"arg": []}, "did you mean args?"),
        ("/collective_rpc", load | {"args": [1]}, "args: got [1]"),
        ("/collective_rpc", load | {"timeout": 3}, "timeout: got 3; expected null"),
        ("/collective_rpc", load | {"method": None}, "method: got None; expected 'reload_weights'"),
        (
            "/collective_rpc",
            load | {"kwargs": load["kwargs"] | {"is_checkpoint_format": False}},
            "`weights_path` alone",
        ),
    ]
    for (path, body, part), answer in zip(wrong, control(updated, *(one[:2] for one in wrong)), strict=True):
        assert answer.status_code == 400 and part in answer.json()["error"]["message"], (path, body, answer.text)
    assert not server.worker.paused
    right = [("/pause?mode=wait&clear_cache=true", {}), ("/collective_rpc", load | {"args": [], "timeout": None})]
    answers = control(updated, *right, ("/resume", {}))
    server.worker.version = None
    assert [answer.status_code for answer in answers] == [200] * 3 and read == [tmp_path / "one"]
