"""Process 0 receives the others: it admits processes of the job, and refuses any other guest with a reason.

One thread serves all connections at once, so that no guest holds up the others, and a guest that has not greeted after
`GREETING_S` is turned away, however much it sent. Anyone may connect, and send anything.

| guest sends | process 0 sends |
|---|---|
| who it is (`Greeting`) | with a secret `challenge`, else `welcome` |
| `proof` | `welcome`, with its own `proof` |
| `here` | before: `ask`; once all have answered: `go`, with its `host` |

Instead, at any time: `refused`, with the reason, or `later`: the guest may try again.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpar.distributed.messages import LINE_BYTES, Greeting, Malformed, decode, encode
from jaxpar.distributed.peer import Peer, Refused
from jaxpar.distributed.rendezvous.secret import FIRST, GUEST, is_proof, new_nonce, prove

GREETING_S = 10.0
"""Time limit for a guest to identify itself."""
ANSWER_S = 5.0
"""Time limit for an admitted guest to answer that it is still there."""
CHECK_S = 0.2
STRANGERS = 512
"""Guests that may be greeting at once; beyond that the oldest is dropped: a process of the job greets at once."""
ACCEPTED = 64
"""Connections accepted in a row before the existing ones are served again."""
EXHAUSTED = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM
MOST_TOLD = 4
"""Refusals that process 0 reports."""
ALIKE = "set distributed.secret_file or JAXPAR_SECRET alike for all processes"


@dataclass(eq=False)
class _Guest:
    """A connection, and its state."""

    connection: socket.socket
    until: float
    """When it must have greeted, or answered."""
    unread: bytes = b""
    greeting: Greeting | None = None
    nonce: str = ""
    """Nonce over which it must prove the secret."""
    gone: bool = False

    @property
    def number(self) -> int:
        """Its process number."""
        assert self.greeting is not None
        return self.greeting.process


class Reception:
    """Admits the other processes of a job.

    Args:
        processes: number of processes of the job.
        secret: shared by them; None for a job without.
        say: called with a sentence for each of the first few refusals.
    """

    def __init__(self, processes: int, secret: bytes | None, say: Callable[[str], None]):
        self._processes, self._secret, self._say = processes, secret, say
        self._selector = selectors.DefaultSelector()
        self._greeting: dict[_Guest, None] = {}
        """Guests not identified yet; the oldest first."""
        self._admitted: dict[int, _Guest] = {}
        self._rivals: dict[int, _Guest] = {}
        """Guests that claim the number of an admitted one; admitted if that one does not answer."""
        self._asked: dict[_Guest, None] = {}
        """Admitted guests whose answer is awaited, in the order in which they were asked."""
        self._all_asked = False
        """Whether all were asked since the last one arrived."""
        self._refusals: list[str] = []

    def receive(self, listeners: Sequence[socket.socket], deadline: float) -> dict[int, Peer]:
        """Return once all are present at the same time.

        Args:
            listeners: sockets that listen.
            deadline: until when, by `time.monotonic`.

        Raises:
            Refused: a process is missing; it is sent to those that are present too.
        """
        try:
            for listener in listeners:
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ)
            while not self._complete():
                if time.monotonic() >= deadline:
                    raise Refused(self._missing())
                self._serve()
            return self._send_on()
        except Refused as refusal:
            self._tell_all({"refused": str(refusal)})
            raise
        finally:
            for guest in self._everybody():
                self._part(guest)
            self._selector.close()

    def _serve(self) -> None:
        for key, _ in self._selector.select(CHECK_S):
            if key.data is None:
                self._accept(key.fileobj)  # pyright: ignore[reportArgumentType]
            elif not key.data.gone:
                self._hear(key.data)
        now = time.monotonic()
        while self._greeting and (oldest := next(iter(self._greeting))).until <= now:
            self._send_away(oldest, f"the greeting took longer than {GREETING_S:g} s")
        while self._asked and (first := next(iter(self._asked))).until <= now:
            self._send_away(first, f"the answer took longer than {ANSWER_S:g} s")

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED):
            try:
                connection = listener.accept()[0]
            except OSError as error:  # The guest is gone, or there are no more files.
                if error.errno in EXHAUSTED:
                    if not self._greeting:
                        raise
                    self._send_away(next(iter(self._greeting)), "process 0 is busy")
                return
            connection.setblocking(False)
            guest = _Guest(connection, time.monotonic() + GREETING_S)
            self._selector.register(connection, selectors.EVENT_READ, guest)
            self._greeting[guest] = None
            if len(self._greeting) > STRANGERS:
                self._send_away(next(iter(self._greeting)), "process 0 is busy")

    def _hear(self, guest: _Guest) -> None:
        try:
            said = guest.connection.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._lose(guest)
            return
        *lines, guest.unread = (guest.unread + said).split(b"\n")
        try:
            for line in lines:
                if not guest.gone:
                    self._take(guest, line)
            if len(guest.unread) > LINE_BYTES:
                raise Malformed(f"a line has more than {LINE_BYTES} bytes")
        except Malformed as error:
            self._refuse(guest, f"this is no process of this jaxpar: {error}")
        except Refused as error:
            self._refuse(guest, str(error))

    def _take(self, guest: _Guest, line: bytes) -> None:
        if guest.greeting is None:
            self._greet(guest, Greeting.read(line))
        elif guest in self._greeting:
            self._check(guest, decode(line).get("proof"))
        elif guest in self._asked and decode(line).get("here") is True:
            del self._asked[guest]
            rival = self._rivals.get(guest.number)
            if rival is not None:
                self._refuse(rival, f"process {guest.number} is there already, {_from(guest)}")
        else:
            raise Malformed("it was not asked")

    def _greet(self, guest: _Guest, greeting: Greeting) -> None:
        guest.greeting = greeting
        if self._secret is None and greeting.nonce is not None:
            raise Refused(f"{greeting.name} has a secret and process 0 has none; {ALIKE}")
        if self._secret is None:
            self._admit(guest, greeting)
        elif greeting.nonce is None:
            raise Refused(f"process 0 has a secret and {greeting.name} has none; {ALIKE}")
        else:
            guest.nonce = new_nonce()
            self._send(guest, {"challenge": guest.nonce})

    def _check(self, guest: _Guest, proof: object) -> None:
        assert self._secret is not None and guest.greeting is not None
        if not is_proof(proof, self._secret, GUEST, guest.greeting, guest.nonce):
            raise Refused(f"{guest.greeting.name} has another secret than process 0; {ALIKE}")
        self._admit(guest, guest.greeting)

    def _admit(self, guest: _Guest, greeting: Greeting) -> None:
        """Admit a guest that is known to belong to the job, if there is a place for it."""
        number = greeting.process
        if greeting.processes != self._processes:
            raise Refused(
                f"{greeting.name} expects {greeting.processes} processes and process 0 expects {self._processes}"
            )
        if not 0 < number < self._processes:
            raise Refused(
                f"{greeting.name} has a number that is not between 1 and {self._processes - 1}, as those of the "
                "processes other than process 0 are"
            )
        first = self._admitted.get(number)
        if first is not None and _hung_up(first.connection):
            self._lose(first)
            first = None
        if first is None:
            self._welcome(guest)
        elif number in self._rivals:
            raise Refused(f"process {number} is there already, {_from(first)}")
        else:
            del self._greeting[guest]
            self._rivals[number] = guest
            self._ask(first)

    def _welcome(self, guest: _Guest) -> None:
        self._greeting.pop(guest, None)
        self._admitted[guest.number] = guest
        self._all_asked = False
        proof = None
        if self._secret is not None:
            assert guest.greeting is not None
            proof = prove(self._secret, FIRST, guest.greeting, guest.nonce)
        self._send(guest, {"welcome": True, "proof": proof})

    def _complete(self) -> bool:
        """Whether all are present. They are asked, since a closed connection is noticed late."""
        if len(self._admitted) < self._processes - 1:
            return False
        if not self._all_asked:
            self._all_asked = True
            for guest in self._admitted.values():
                self._ask(guest)
        return not self._asked

    def _ask(self, guest: _Guest) -> None:
        if guest not in self._asked:
            self._asked[guest] = None
            guest.until = time.monotonic() + ANSWER_S
            self._send(guest, {"ask": True})

    def _send_on(self) -> dict[int, Peer]:
        peers = {
            number: Peer(number, guest.greeting.host, guest.connection)
            for number, guest in self._admitted.items()
            if guest.greeting is not None
        }
        admitted, self._admitted = list(self._admitted.values()), {}
        self._tell_all({"later": "the job has begun"})
        for guest in admitted:
            self._selector.unregister(guest.connection)
            guest.connection.settimeout(None)
            self._send(guest, {"go": True, "host": socket.gethostname()})
        return peers

    def _missing(self) -> str:
        missing = [str(number) for number in range(1, self._processes) if number not in self._admitted]
        if not missing:  # They are present and do not answer.
            missing = [str(guest.number) for guest in self._asked]
        said = f"not there: process {', '.join(missing[:8])}"
        if len(missing) > 8:
            said += f" and {len(missing) - 8} more"
        return "; ".join([said, *(f"refused: {why}" for why in self._refusals)])

    def _refuse(self, guest: _Guest, why: str) -> None:
        self._send(guest, {"refused": why})
        self._lose(guest)
        if guest.greeting is not None and why not in self._refusals and len(self._refusals) < MOST_TOLD:
            self._refusals.append(why)
            self._say(f"process 0 refuses a process: {why}")

    def _send_away(self, guest: _Guest, why: str) -> None:
        self._send(guest, {"later": why})
        self._lose(guest)

    def _lose(self, guest: _Guest) -> None:
        """A guest is gone: its rival takes its place."""
        self._part(guest)
        self._greeting.pop(guest, None)
        self._asked.pop(guest, None)
        if guest.greeting is None:
            return
        number = guest.number
        if self._rivals.get(number) is guest:
            del self._rivals[number]
        elif self._admitted.get(number) is guest:
            del self._admitted[number]
            self._all_asked = False
            rival = self._rivals.pop(number, None)
            if rival is not None:
                self._welcome(rival)

    def _part(self, guest: _Guest) -> None:
        if not guest.gone:
            guest.gone = True
            self._selector.unregister(guest.connection)
            guest.connection.close()

    def _everybody(self) -> list[_Guest]:
        return [*self._greeting, *self._rivals.values(), *self._admitted.values()]

    def _tell_all(self, message: dict[str, Any]) -> None:
        for guest in self._everybody():
            self._send(guest, message)

    def _send(self, guest: _Guest, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # A guest that went away is noticed when it is next read, or by the watch.
            guest.connection.send(encode(message))


def _from(guest: _Guest) -> str:
    assert guest.greeting is not None
    return f"on {guest.greeting.host}"


def _hung_up(connection: socket.socket) -> bool:
    """Whether a guest went away since it was last read, as one does that was restarted."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
