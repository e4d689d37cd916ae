"""The connections of a watch to its peers, and what is known of each."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jaxpar.distributed.messages import encode
from jaxpar.distributed.peer import Peer
from jaxpar.distributed.verdicts import Mark, Sign

WAKE_S = 0.125


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
                return False
            except OSError:  # The end of the connection is noticed when it is read.
                self._unsent.clear()
            return True


@dataclass
class Known:
    """The state of a peer."""

    peer: Peer
    outbox: Outbox
    mark: Mark
    set_at: float
    """Time at which it set its mark, on the clock of this process."""
    received_at: float
    idle_s: float = 0.0
    left: bool = False
    unread: bytes = field(default=b"", repr=False)

    def sign(self, now: float) -> Sign:
        """The last known state of the peer."""
        age = self.received_at - self.set_at
        return Sign(self.peer.process, self.peer.host, self.mark, age, now - self.received_at, self.idle_s)


def send_all(peers: Iterable[Known], message: Mapping[str, object]) -> None:
    """Send to peers, without waiting for them. A report is only sent to those that have taken the last one."""
    line, is_report = encode(message), message.keys() == {"at"}
    for known in peers:
        known.outbox.send(line, if_empty=is_report)


def flush(peers: Iterable[Known]) -> bool:
    """Send on what connections did not take before; whether they have taken everything."""
    taken = [known.outbox.flush() for known in peers]
    return all(taken)


def drain(peers: Iterable[Known], seconds: float) -> None:
    """Wait until all connections have taken what was sent, but no longer than this."""
    peers, until = list(peers), time.monotonic() + seconds
    while not flush(peers) and time.monotonic() < until:
        time.sleep(0.01)


def linger(peers: Iterable[Known], selector: selectors.BaseSelector, timeout_s: float, seconds: float) -> None:
    """Wait for peers to hang up, except those that were silent for `timeout_s`, but no longer than `seconds`."""
    now = time.monotonic()
    for known in peers:
        if now - known.received_at > timeout_s and known.peer.connection in selector.get_map():
            selector.unregister(known.peer.connection)
    while selector.get_map() and time.monotonic() < now + seconds:
        for key, _ in selector.select(timeout=WAKE_S):
            with contextlib.suppress(OSError):
                if key.data.peer.connection.recv(65536):
                    continue
            selector.unregister(key.fileobj)
