"""Clients load, replace and unload adapters while the server draws answers; what has begun ends as it began."""

import asyncio
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxpar.convert import main
from jaxpar.interop.adapters.adapter import AdapterSource, MergedAdapter
from jaxpar.interop.adapters.open_adapter import adaptable_of, open_adapter
from jaxpar.interop.sources.model_text import ModelText
from jaxpar.layers.declaration.adaptation import AdapterStack
from jaxpar.serving.adapters import Adapters
from jaxpar.serving.app import Server
from jaxpar.serving.served_model import ServedModel
from jaxpar.serving.weights import ServedWeights
from jaxpar.serving.worker import Worker
from tests.generation.test_adapters import CAPACITY, SLOTS, Request, base_of, drawn_by, generator_of, placed
from tests.goldens.loading import FOLDER
from tests.interop.test_adapter import LORA, save_factors
from tests.serving.served import asked

pytestmark = pytest.mark.long

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def weights() -> ServedWeights:
    """Room for two adapters, one of which has a name."""
    base = base_of("llama")
    stack = AdapterStack(4, 4.0, adaptable_of(base, "--adapters"), size=2)
    return ServedWeights(generator_of(AdapterSource(base, [None, None], stack), {}), base, base, [None, None])


@pytest.fixture
def server(weights: ServedWeights, folders: Path) -> Iterator[Server]:
    text = ModelText(lambda tokens: " ".join(map(str, tokens)), [7], 0, list, list, {}, "numbers")  # pyright: ignore
    model = ServedModel("base", weights.generator.config.model, text, CAPACITY, None)
    worker = Worker(weights.generator.engine(SLOTS, CAPACITY), 2 * SLOTS)
    worker.start()
    adapters = Adapters([folders / "allowed"], 1, weights, model, worker, 300.0)
    yield Server(model, worker, "key", 300.0, 4096, weights.generator.scored, adapters=adapters)
    worker.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three adapters: of a run, and in PEFT's format with other scales."""
    folder = tmp_path_factory.mktemp("adapters")
    save_factors(FOLDER / "llama", folder / "allowed/run")
    assert main(["jaxpar-to-hf", str(folder / "allowed/run"), str(folder / "allowed/peft"), "--adapter"]) == 0
    shutil.copytree(folder / "allowed/peft", folder / "allowed/third")
    for name, alpha in (("peft", -20.0), ("third", 20.0)):
        config = folder / f"allowed/{name}/adapter_config.json"
        config.write_text(config.read_text().replace(f'"lora_alpha": {LORA.alpha}', f'"lora_alpha": {alpha}'))
    (folder / "allowed/link").symlink_to(folder / "elsewhere")
    save_factors(FOLDER / "llama", folder / "elsewhere")
    return folder


def test_a_replaced_adapter_serves_what_has_begun_and_nothing_compiles(server, weights, folders, monkeypatch):
    base, generator = base_of("llama"), weights.generator
    wanted, alone = {}, generator_of(base, {})
    for name in ("run", "peft", "third"):
        merged = MergedAdapter(base, open_adapter(folders / "allowed" / name, base, "--adapter"))
        alone.update(placed(merged, {}).weights)
        ((row,),) = drawn_by(alone, [Request(PROMPT, 55, stop=[7])])
        wanted[name] = row.log_probabilities.tolist()
    assert len(wanted["run"]) == 55
    assert all(abs(one[0] - other[0]) > 1e-3 for one, other in combinations(wanted.values(), 2))
    adapters = server.adapters
    assert adapters is not None
    slowly, step = threading.Event(), server.worker._engine.step
    monkeypatch.setattr(server.worker._engine, "step", lambda: (time.sleep(0.2 * slowly.is_set()), step())[1])
    body = lambda path, name="tuned", **more: {"lora_name": name, "lora_path": f"{folders}/allowed/{path}"} | more

    async def ask(client: httpx.AsyncClient) -> None:
        waits, free = asyncio.Event(), adapters._free
        monkeypatch.setattr(adapters, "_free", lambda: (waits.set(), free())[1])

        async def completion(tokens: int, name: str = "tuned") -> list[float]:
            fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "logprobs": 0}
            answer = await client.post("/completions", json=fields | {"model": name})
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["logprobs"]["token_logprobs"]

        loaded = await client.post("/load_lora_adapter", json=body("run"))
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'tuned' added successfully.")
        assert [one["id"] for one in (await client.get("/models")).json()["data"]] == ["base", "tuned"]
        assert await completion(6) == pytest.approx(wanted["run"][:6], abs=1e-5)
        compiled = [one._cache_size() for one in generator.programs._compiled.values()]
        slowly.set()
        running = asyncio.create_task(completion(55))
        while not server.worker._engine.busy:
            await asyncio.sleep(0.001)
        assert (await client.post("/load_lora_adapter", json=body("peft", load_inplace=True))).status_code == 200
        assert not running.done(), "a replacement does not wait where there is room"
        assert await completion(3) == pytest.approx(wanted["peft"][:3], abs=1e-5)
        assert (await client.post("/unload_lora_adapter", json={"lora_name": "tuned"})).status_code == 200
        assert (await client.post("/load_lora_adapter", json=body("third", "other"))).status_code == 200
        assert not running.done(), "another name does not wait where there is room"
        assert await completion(3, "other") == pytest.approx(wanted["third"][:3], abs=1e-5)
        waits.clear()
        again = asyncio.create_task(client.post("/load_lora_adapter", json=body("peft", "other", load_inplace=True)))
        await waits.wait()
        await asyncio.wait([again], timeout=0.5)
        assert not running.done() and not again.done(), "a replacement waits for an answer where there is no room"
        slowly.clear()
        assert await running == pytest.approx(wanted["run"], abs=1e-5)
        assert (await again).status_code == 200
        assert await completion(6, "other") == pytest.approx(wanted["peft"][:6], abs=1e-5)
        assert [one._cache_size() for one in generator.programs._compiled.values()] == compiled
        gone = await client.post("/unload_lora_adapter", json={"lora_name": "other"})
        assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'other' removed successfully.")
        assert (await client.post("/completions", json={"model": "other", "prompt": PROMPT})).status_code == 404

    asked(server, ask, base="http://localhost/v1")
    assert dict(adapters._uses) == {0: 0, 1: 0}, "every answer has ended"


def test_only_adapters_in_the_operators_folders_are_read(server: Server, folders: Path):
    allowed = folders / "allowed"

    async def ask(client: httpx.AsyncClient) -> None:
        load = lambda **more: {"lora_name": "one", "lora_path": str(allowed / "run")} | more
        wrong: list[tuple[str, dict[str, Any], int, tuple[str, ...]]] = [
            ("load", {"lora_path": str(allowed / "run")}, 400, ("lora_name: got None",)),
            ("load", load(lora_name="base"), 400, ("lora_name: got 'base'", "other than that of the model")),
            ("load", load(lora_name="a\nb"), 400, ("lora_name: got 'a\\nb'", "printed")),
            ("load", load(load_inplace=3), 400, ("load_inplace: got 3", "true or false")),
            ("load", load(is_3d_lora_weight=True), 400, ("is_3d_lora_weight", "nothing else")),
            ("load", load(rank=3), 400, ("rank: this endpoint has no such field",)),
            ("unload", {"lora_name": "two"}, 404, ("there is no adapter 'two'",)),
            ("unload", {}, 400, ("lora_name: got None",)),
        ]
        for path in ("elsewhere", "allowed", "allowed/link", "allowed/../elsewhere", "allowed/none", "a\0b"):
            wrong.append(("load", load(lora_path=f"{folders}/{path}"), 400, ("lora_path: got", "--adapters")))
        for verb, body, status, parts in wrong:
            answer = await client.post(f"/{verb}_lora_adapter", json=body)
            message = answer.json()["error"]["message"]
            assert answer.status_code == status and all(part in message for part in parts), message
        assert (await client.post("/load_lora_adapter", json=load())).status_code == 200
        twice = await client.post("/load_lora_adapter", json=load())
        assert twice.status_code == 400 and "load_inplace: true" in twice.json()["error"]["message"]
        full = await client.post("/load_lora_adapter", json=load(lora_name="two"))
        assert full.status_code == 409 and "room for 1" in full.json()["error"]["message"]
        for path in ("load_lora_adapter", "unload_lora_adapter"):
            answer = await client.post(f"/{path}", json=load(), headers={"Authorization": "Bearer wrong"})
            assert answer.status_code == 401
        assert (await client.post("/unload_lora_adapter", json={"lora_name": "one"})).status_code == 200
        server.adapters = None
        transport = httpx.ASGITransport(app=server.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1") as other:
            missing = await other.post("/load_lora_adapter", json=load())
            assert missing.status_code == 404, "a server without the flag has no such path"

    asked(server, ask, base="http://localhost/v1")
