"""The worker of a server ends, fails and cancels calls."""

import asyncio
import threading

import httpx
import jax
import pytest

from jaxpar.generation.generator import Generator
from jaxpar.generation.requests import Request
from jaxpar.generation.text import Stop
from jaxpar.interop.sources.model_text import ModelText
from jaxpar.serving.app import Server
from jaxpar.serving.refusals import Refusal
from jaxpar.serving.served_model import ServedModel
from jaxpar.serving.worker import Job, Worker
from tests.serving.served import completion, decode, encode


def test_a_failure_of_the_engine_ends_the_worker_and_tells_clients(generator: Generator):
    failed = threading.Event()
    worker = Worker(generator.engine(1, 64), 4, failed.set)
    worker._engine.step = lambda: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
    text = ModelText(decode, [], 0, encode, encode, {}, "letters")
    server = Server(ServedModel("tiny", generator.config.model, text, 64, None), worker, None, 60.0, 4096)
    worker.start()
    transport = httpx.ASGITransport(server.app())

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = {"model": "tiny", "prompt": "a"}
            return [await client.post("/v1/completions", json=asked) for _ in range(2)]

    first, second = asyncio.run(ask())
    assert first.status_code == 500 and "ZeroDivisionError" in first.json()["error"]["message"]
    assert second.status_code == 503 and failed.wait(5)


def test_a_model_that_is_not_finite_fails_the_request_alone(generator: Generator, server: Server, client: httpx.Client):
    weights = generator._weights
    generator.update(jax.tree.map(lambda leaf: leaf * float("nan"), weights))
    try:
        answer = client.post("/completions", json={"model": "tiny", "prompt": "a"})
    finally:
        generator.update(weights)
    assert answer.status_code == 500 and "finite" in answer.json()["error"]["message"]
    assert completion(client, prompt="a", max_tokens=2)["choices"][0]["finish_reason"] == "length"


def test_a_call_that_nobody_waits_for_is_not_made(generator: Generator):
    worker, begun, go, calls = Worker(generator.engine(1, 64), 4), threading.Event(), threading.Event(), list[int]()
    worker.start()
    running = worker.call(lambda: (begun.set(), go.wait(60)))
    assert begun.wait(60) and not running.cancel()
    assert worker.call(lambda: calls.append(1)).cancel()
    go.set()
    assert worker.call(lambda: 5).result(60) == 5 and not calls and worker.failure is None
    worker.close()


@pytest.mark.parametrize("fails", [False, True])
def test_calls_that_wait_at_the_end_are_told_so(generator: Generator, fails: bool):
    worker = Worker(generator.engine(1, 64), 4)
    worker._engine.step = lambda: [1 / 0] if fails else []  # pyright: ignore[reportAttributeAccessIssue]
    worker.submit([Job(Request([1], 2), [Stop(decode, [])], 0, lambda piece: None)])
    cancelled, waiting = (worker.call(lambda: 5, idle=True) for _ in range(2))
    assert cancelled.cancel()
    worker.start()
    if fails:
        worker.join(60)
    worker.close()
    with pytest.raises(ZeroDivisionError if fails else Refusal):
        waiting.result(60)
