"""Connections to a meeting that are no processes of its job: they say what a test wants."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from tests.patience import seconds


def greeting(process: object, processes: object, **other: object) -> bytes:
    """What a process says first; `other` replaces parts of it."""
    return line({"jaxpar": 1, "process": process, "processes": processes, "host": "node-b", "nonce": None} | other)


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def call(address: str, said: bytes = b"") -> socket.socket:
    """A connection to process 0, as soon as it listens, over which this was said."""
    host, port = address.rsplit(":", 1)
    until = time.monotonic() + seconds(20)
    while True:
        try:
            listener = socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            assert time.monotonic() < until, "nobody listens"
            time.sleep(0.01)
        else:
            listener.settimeout(seconds(20))
            listener.sendall(said)
            return listener


def hear(listener: socket.socket) -> dict[str, Any]:
    """The next message; nothing of what follows is read."""
    said = b""
    while not said.endswith(b"\n"):
        more = listener.recv(1)
        assert more, f"hung up after {said!r}"
        said += more
    return json.loads(said)


def answer(address: str, said: bytes) -> dict[str, Any]:
    """What process 0 says to this."""
    with call(address, said) as listener:
        return hear(listener)
