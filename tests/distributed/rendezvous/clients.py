"""Connections to a meeting that are no processes of its job: they send what a test wants."""

import json
import socket
import time
from typing import Any

from tests.patience import seconds


def hello(process: object, processes: object, **other: object) -> bytes:
    """The first message of a process; `other` replaces parts of it."""
    return line({"jaxpar": 1, "process": process, "processes": processes, "host": "node-b", "nonce": None} | other)


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def call(address: str, sent: bytes = b"") -> socket.socket:
    """A connection to process 0, as soon as it listens, over which this is sent."""
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
            listener.sendall(sent)
            return listener


def receive(listener: socket.socket) -> dict[str, Any]:
    """The next message; nothing of what follows is read."""
    sent = b""
    while not sent.endswith(b"\n"):
        more = listener.recv(1)
        assert more, f"hung up after {sent!r}"
        sent += more
    return json.loads(sent)


def answer(address: str, sent: bytes) -> dict[str, Any]:
    """The answer of process 0."""
    with call(address, sent) as listener:
        return receive(listener)
