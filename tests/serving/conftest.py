"""A server of a small model, and a client of it."""

import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from jaxpar.generation.generator import Generator
from jaxpar.interop.sources.model_text import ModelText
from jaxpar.serving.app import Server
from jaxpar.serving.served_model import ServedModel
from jaxpar.serving.worker import Worker
from tests.serving.served import KEY, LENGTH, QUEUE, SLOTS, decode, encode
from tests.small_run import SmallRun, small


@pytest.fixture(scope="package")
def generator() -> Generator:
    run = SmallRun(small(model={"vocab": 61, "layers": 2}))
    return Generator(run.config, run.step.mesh, run.step.residency.initial_state().master)


@pytest.fixture(scope="package")
def server(generator: Generator) -> Iterator[Server]:
    text = ModelText(decode, [], 0, encode, encode, {}, "letters")
    model = ServedModel("tiny", generator.config.model, text, LENGTH, None, "there is none")
    worker = Worker(generator.engine(SLOTS, LENGTH), SLOTS + QUEUE)
    worker.start()
    yield Server(model, worker, KEY, 300.0, 4096)
    worker.close()


@pytest.fixture(scope="package")
def address(server: Server) -> Iterator[str]:
    running = uvicorn.Server(uvicorn.Config(server.app(), port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1"
    running.should_exit = True
    thread.join()


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {KEY}"}, timeout=300) as client:
        yield client
