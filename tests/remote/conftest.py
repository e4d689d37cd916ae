from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxpar.remote import store
from tests.remote.s3_server import BUCKET, Server, environment, s3_server


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(running: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with one empty bucket, which this process's URLs name."""
    import fsspec

    for name, value in environment(running).items():
        monkeypatch.setenv(name, value)
    running.reset()
    store._filesystem.cache_clear()
    system = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
    if system.exists(BUCKET):
        system.rm(BUCKET, recursive=True)
    system.mkdir(BUCKET)
    running.asked.clear()
    yield running
    running.reset()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test; tries follow each other at once."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAXPAR_CACHE", str(folder))
    monkeypatch.setattr(store, "PAUSES_S", (0.01,) * 5)
    return folder


@pytest.fixture
def system(cache: Path) -> Iterator[Any]:
    """A store in this process's memory, empty, whose URLs begin with memory://."""
    import fsspec

    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    store._filesystem.cache_clear()
