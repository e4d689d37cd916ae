"""A small served model: its sizes, its texts, and requests to it."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from jaxpar.serving.app import Server

LENGTH, SLOTS, QUEUE, KEY = 2048, 2, 3, "sk-test"
LETTERS = [*"abcdefghijklmnopqrstuvwxyz .,:", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ01234"]


def decode(tokens: Any) -> str:
    return "".join(LETTERS[token] for token in tokens)


def encode(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def completion(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/completions", json={"model": "tiny", "temperature": 0} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def wait_until_idle(server: Server) -> None:
    until = time.monotonic() + 120
    while server.worker._jobs or server.worker._engine.busy:
        assert time.monotonic() < until, "slots are in use"
        time.sleep(0.01)


def asked(server: Server, ask: Callable[[httpx.AsyncClient], Any], key: str = "key", base: str = "http://localhost"):
    """The answer that `ask` gets with a client of a server that has no socket."""

    async def run() -> Any:
        headers, transport = {"Authorization": f"Bearer {key}"}, httpx.ASGITransport(server.app())
        async with httpx.AsyncClient(transport=transport, base_url=base, timeout=300, headers=headers) as client:
            return await ask(client)

    return asyncio.run(run())


def control(server: Server, *requests: tuple[str, Any]) -> list[httpx.Response]:
    """The answers to requests in turn."""

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post(path, json=body) for path, body in requests]

    return asked(server, ask, KEY)
