"""A trainer puts new weights in place of a server's while its clients wait, and asks what only it needs to know."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxpar.generation.generator import Generator
from jaxpar.interop.sources.model_text import ModelText
from jaxpar.interop.sources.open_source import replaced_weights
from jaxpar.serving.app import Server
from jaxpar.serving.served_model import ServedModel
from jaxpar.serving.updates import Updates
from jaxpar.serving.worker import Worker
from tests.generation.test_adapters import CAPACITY, SLOTS, Request, base_of, drawn_by, generator_of, placed
from tests.goldens.loading import FOLDER
from tests.serving.served import asked

pytestmark = pytest.mark.long

PROMPT = [3, 1, 4, 1, 5]
COMPLETION = {"model": "base", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 0}


@pytest.fixture(scope="module")
def generator() -> Generator:
    return generator_of(base_of("llama"), {})


@pytest.fixture
def server(generator: Generator, tmp_path: Path) -> Iterator[Server]:
    text = ModelText(lambda tokens: " ".join(map(str, tokens)), [7], 0, list, list, {}, "numbers")  # pyright: ignore
    model = ServedModel("base", generator.config.model, text, CAPACITY, None)
    worker = Worker(generator.engine(SLOTS, CAPACITY), 2 * SLOTS)
    before = generator._weights

    def read(folder: Path) -> None:
        generator.update(placed(replaced_weights(base_of("llama"), folder), {}).weights)

    (tmp_path / "shared").mkdir()
    worker.start()
    yield Server(model, worker, "key", 300.0, 4096, generator.scored, Updates(tmp_path / "shared", worker, read))
    worker.close()
    generator.update(before)


def weights_in(folder: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Path:
    folder.mkdir(parents=True)
    tensors = load_file(FOLDER / "llama/model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")
    return folder


def loading(folder: Path | str, method: str = "reload_weights") -> dict[str, Any]:
    return {"method": method, "kwargs": {"weights_path": str(folder)}}


def test_answers_wait_for_new_weights_and_name_them(server: Server, generator: Generator, tmp_path: Path):
    """Answers that have begun end with the previous weights."""
    folder = weights_in(tmp_path / "shared/version-1", lambda all: {name: 1.5 * one for name, one in all.items()})

    async def ask(client: httpx.AsyncClient) -> None:
        completion = lambda **more: client.post("/v1/completions", json=COMPLETION | more)
        first = (await completion()).json()
        assert first["system_fingerprint"] is None
        running = asyncio.create_task(completion(max_tokens=40))
        while not server.worker._engine.busy:
            await asyncio.sleep(0.001)
        assert (await client.post("/pause?mode=wait", json={})).json() == {"status": "paused"}
        assert (await running).json()["choices"][0]["text"].startswith(first["choices"][0]["text"])
        waiting = asyncio.create_task(completion())
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0] and server.worker._jobs
        assert (await client.post("/collective_rpc", json=loading(folder))).json() == {"results": [None]}
        assert not waiting.done()
        assert (await client.post("/resume", json={})).status_code == 200
        second = (await waiting).json()
        (wanted,) = drawn_by(generator_of(replaced_weights(base_of("llama"), folder), {}), [Request(PROMPT, 6)])
        assert second["system_fingerprint"] == "version-1"
        likely = [one["choices"][0]["logprobs"]["token_logprobs"] for one in (first, second)]
        assert likely[1] == pytest.approx(wanted[0].log_probabilities.tolist(), abs=1e-5) != likely[0]

    asked(server, ask)


def test_a_client_that_leaves_while_the_server_is_paused_is_forgotten(server: Server):
    async def ask(client: httpx.AsyncClient) -> None:
        await client.post("/pause?mode=wait", json={})
        waiting = asyncio.create_task(client.post("/v1/completions", json=COMPLETION))
        while not server.worker._jobs:
            await asyncio.sleep(0.001)
        server.worker.drop([*server.worker._jobs.values()])
        while server.worker._jobs or server.worker._new:
            await asyncio.sleep(0.001)
        waiting.cancel()
        await client.post("/resume", json={})
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200

    asked(server, ask)


def test_only_folders_of_the_trainer_are_read_and_only_with_the_key(server: Server, tmp_path: Path):
    outside = weights_in(tmp_path / "elsewhere", dict)
    (tmp_path / "shared/link").symlink_to(outside)
    small = weights_in(tmp_path / "shared/small", lambda all: all | {"model.norm.weight": np.ones(3, np.float32)})
    good = weights_in(tmp_path / "shared/good", dict)

    async def ask(client: httpx.AsyncClient) -> None:
        wrong: list[tuple[str, dict[str, Any], int, tuple[str, ...]]] = [
            ("/pause", {}, 400, ("mode: got None", "wait")),
            ("/pause?mode=abort", {}, 400, ("mode: got 'abort'", "wait")),
            ("/collective_rpc", loading(good), 409, ("draws answers", "/pause")),
            ("/collective_rpc", loading(good, "exec"), 400, ("method: got 'exec'", "reload_weights")),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": 3}, 400, ("kwargs: got 3", "weights_path")),
            ("/collective_rpc", {"method": "reload_weights"}, 400, ("weights_path: got None",)),
        ]
        for folder in (outside, tmp_path / "shared/link", tmp_path / "shared", f"{good}/../../elsewhere", "a\0b"):
            wrong.append(("/collective_rpc", loading(folder), 400, ("weights_path: got", "--updates")))
        for path, body, status, parts in wrong:
            answer = await client.post(path, json=body)
            message = answer.json()["error"]["message"]
            assert answer.status_code == status and all(part in message for part in parts), message
        await client.post("/pause?mode=wait", json={})
        answer = await client.post("/collective_rpc", json=loading(small))
        assert answer.status_code == 400 and "model.norm.weight is [3]" in answer.json()["error"]["message"]
        await client.post("/resume", json={})
        body = (await client.post("/v1/completions", json=COMPLETION)).json()
        assert body["system_fingerprint"] is None, "the weights are those of before"

    async def refuse(client: httpx.AsyncClient) -> None:
        for path in ("/pause?mode=wait", "/collective_rpc", "/resume"):
            assert (await client.post(path, json={})).status_code == 401
        assert not server.worker.paused

    asked(server, ask)
    asked(server, refuse, key="other")
    server.updates = None

    async def miss(client: httpx.AsyncClient) -> None:
        assert (await client.post("/pause?mode=wait", json={})).status_code == 404

    asked(server, miss)


def test_tokens_and_log_probabilities_of_prompts_are_told(server: Server, generator: Generator):
    """The token that ends an answer is one of them; the model's end token is not one where it is ignored."""

    async def ask(client: httpx.AsyncClient) -> None:
        completion = lambda **more: client.post("/v1/completions", json=COMPLETION | more)
        free = {"return_token_ids": True, "ignore_eos": True, "skip_special_tokens": False, "top_k": -1}
        (choice,) = (await completion(**free, max_tokens=12)).json()["choices"]
        tokens = choice["token_ids"]
        assert len(tokens) == len(choice["logprobs"]["token_logprobs"]) == 12 and choice["finish_reason"] == "length"
        at = next(at for at in range(1, 12) if tokens[at] not in tokens[:at])
        (short,) = (await completion(**free, max_tokens=12, stop_token_ids=[tokens[at]])).json()["choices"]
        assert short["token_ids"] == tokens[: at + 1] and short["finish_reason"] == "stop"
        likely = [one["logprobs"]["token_logprobs"] for one in (short, choice)]
        assert likely[0] == pytest.approx(likely[1][: at + 1], abs=1e-5)
        (scored,) = (await completion(prompt=[*PROMPT, *tokens], max_tokens=1, prompt_logprobs=0)).json()["choices"]
        first, *others = scored["prompt_logprobs"]
        assert first is None and [list(one) for one in others] == [[str(one)] for one in [*PROMPT, *tokens][1:]]
        scores = [next(iter(one.values()))["logprob"] for one in others]
        assert scores[len(PROMPT) - 1 :] == pytest.approx(likely[1], abs=1e-5)
        assert scores == pytest.approx(generator.scored([*PROMPT, *tokens]).tolist())
        (single,) = (await completion(prompt=[3], prompt_logprobs=0)).json()["choices"]
        assert single["prompt_logprobs"] == [None]
        for name, value in (("prompt_logprobs", 0), ("return_token_ids", True)):
            answer = await completion(stream=True, **{name: value})
            assert answer.status_code == 400 and f"{name}: a stream" in answer.json()["error"]["message"]
        answer = await completion(stop_token_ids=["a"])
        assert answer.status_code == 400 and "stop_token_ids" in answer.json()["error"]["message"]

    asked(server, ask)
