"""Lines on their way to a peer, over a connection that does not block."""

from __future__ import annotations

import socket
import threading


class Outbox:
    """Sends lines over a connection; what it does not take at once is stored, and sent by `flush`.

    Lines are never torn: a peer that reads again after a pause goes on where it stopped. Any thread may call this.

    Args:
        connection: a socket that does not block.
    """

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._unsent = bytearray()
        self._lock = threading.Lock()

    def send(self, line: bytes, *, if_empty: bool = False) -> None:
        """Send a line after those before it; with `if_empty` only where the connection has taken these."""
        with self._lock:
            if not (if_empty and self._unsent):
                self._unsent += line
        self.flush()

    def flush(self) -> bool:
        """Send on what the connection did not take before; whether it has taken everything."""
        with self._lock:
            try:
                while self._unsent:
                    del self._unsent[: self._connection.send(self._unsent)]
            except BlockingIOError:
                pass
            except OSError:  # The end of the connection is noticed when it is read.
                self._unsent.clear()
            return not self._unsent
