"""An address at which nobody listens."""

import socket

import pytest


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def port(address: str) -> int:
    return int(address.split(":")[1])
