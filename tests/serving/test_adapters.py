"""Clients name an adapter as the model, and get its answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from jaxpar.interop.adapters.adapter import AdapterSource
from jaxpar.interop.sources.model_text import ModelText
from jaxpar.serving.app import Server
from jaxpar.serving.served_model import ServedModel
from jaxpar.serving.worker import Worker
from tests.generation.test_adapters import CAPACITY, SLOTS, Request, adapter_of, base_of, drawn_by, generator_of

PROMPT = [3, 1, 4, 1, 5]


@pytest.mark.long
def test_a_request_names_its_adapter_as_the_model():
    generator = generator_of(AdapterSource(base_of("llama"), [adapter_of("llama", number) for number in range(2)]), {})
    wanted = drawn_by(generator, [Request(PROMPT, 6, adapter=number) for number in (-1, 0, 1)])
    text = ModelText(lambda tokens: " ".join(map(str, tokens)), [], 0, list, list, {}, "numbers")  # pyright: ignore
    model = ServedModel("base", generator.config.model, text, CAPACITY, None, adapters={"first": 0, "second": 1})
    worker = Worker(generator.engine(SLOTS, CAPACITY), 2 * SLOTS)
    worker.start()

    async def ask() -> None:
        transport = httpx.ASGITransport(app=Server(model, worker, None, 300.0, 4096).app())
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1", timeout=300) as client:
            ids = [(one["id"], one.get("parent")) for one in (await client.get("/models")).json()["data"]]
            assert ids == [("base", None), ("first", "base"), ("second", "base")]
            assert (await client.get("/models/second")).json()["id"] == "second"
            assert (await client.get("/models/third")).status_code == 404

            async def completion(name: str | None) -> httpx.Response:
                fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 0}
                return await client.post("/completions", json=fields | {"model": name})

            answers = await asyncio.gather(*map(completion, ("base", "first", "second")))
            for name, answer, (row,) in zip(("base", "first", "second"), answers, wanted, strict=True):
                body = answer.json()
                assert body["model"] == name and body["choices"][0]["text"] == text.decode(row.tokens)
                likely = body["choices"][0]["logprobs"]["token_logprobs"]
                assert likely == pytest.approx(row.log_probabilities.tolist(), abs=1e-5)
            missing, other = await completion(None), await completion("third")
            assert missing.status_code == 400 and other.status_code == 404
            assert other.json()["error"]["message"] == (
                "model: there is no 'third' here; expected 'base', 'first' or 'second'"
            )

    try:
        asyncio.run(ask())
    finally:
        worker.close()
