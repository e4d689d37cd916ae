"""A connection to process 0 during the meeting, and what is known about who is at its other end."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from jaxpar.distributed.messages import Hello, encode


@dataclass(eq=False)
class Client:
    """A connection, and its state."""

    connection: socket.socket
    """Socket of the connection, non-blocking."""
    until: float
    """Deadline for it to identify itself, or to answer."""
    unread: bytes = b""
    hello: Hello | None = None
    nonce: str = ""
    """Nonce over which it must prove the secret."""
    gone: bool = False

    @property
    def process(self) -> int:
        """Index of the process."""
        assert self.hello is not None
        return self.hello.process

    @property
    def origin(self) -> str:
        """Host and address, for messages."""
        assert self.hello is not None
        return f"on {self.hello.host}"

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message. A connection that does not take all of it is shut down: messages are short, so the client
        reads none of them."""
        line = encode(message)
        with contextlib.suppress(OSError):  # A closed connection is noticed when it is next read, or by the watch.
            try:
                sent = self.connection.send(line)
            except BlockingIOError:
                sent = 0
            if sent < len(line):
                self.connection.shutdown(socket.SHUT_RDWR)

    def is_closed(self) -> bool:
        """Whether the client closed the connection since it was last read, as one does that was restarted."""
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
