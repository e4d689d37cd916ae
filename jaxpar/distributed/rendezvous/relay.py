"""A listener to JAX's coordination service that stays open when process 0 dies.

JAX's client aborts its process (SIGABRT, and a C++ stack trace) as soon as its connection to process 0 ends; the
callback that its constructor takes for this cannot be called from Python (jaxlib 0.11.2: `std::bad_cast`). So the
clients of the other processes connect to a relay of their own process, which forwards bytes, and stays open when
process 0 is gone: the watch then has time to report who died. Only start-up, checkpoints and signals go through it;
collectives between devices have connections of their own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

CONNECT_S = 20.0
"""Time limit for process 0 to open its service after the meeting."""
RETRY_S = 0.1
BYTES = 65536


def open_relay(coordinator: str) -> str:
    """Relay connections to `coordinator` (`host:port`) while this process lives; returns the relay's `host:port`."""
    host, port = coordinator.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    target = host.strip("[]"), int(port)
    threading.Thread(target=_receive, args=(listener, target), name="relay", daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _receive(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, target), name="relay", daemon=True).start()


def _serve(client: socket.socket, target: tuple[str, int]) -> None:
    """Forward bytes in both directions until the client ends; the end of `target` is not forwarded."""
    with client:
        service = _reach(target)
        if service is None:
            return
        with service:
            for side in (client, service):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_forward, args=(service, client), name="relay", daemon=True).start()
            _forward(client, service)
            with contextlib.suppress(OSError):  # Closing alone would wait for the thread that reads.
                service.shutdown(socket.SHUT_WR)
            while _read(client):  # The service is gone, and the client must not notice.
                pass


def _reach(target: tuple[str, int]) -> socket.socket | None:
    until = time.monotonic() + CONNECT_S
    while time.monotonic() < until:
        try:
            service = socket.create_connection(target, timeout=CONNECT_S)
        except OSError:
            time.sleep(RETRY_S)
        else:
            service.settimeout(None)
            return service
    return None


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := _read(source):
            target.sendall(data)


def _read(source: socket.socket) -> bytes:
    """The next bytes; empty when the other side is gone."""
    try:
        return source.recv(BYTES)
    except OSError:
        return b""
