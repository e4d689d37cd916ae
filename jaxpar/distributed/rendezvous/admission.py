"""Process 0 receives the others: it admits processes of the job, and refuses any other client with a reason.

One thread serves all connections at once, so that no client delays the others, and a client that has not identified
itself after `HELLO_S` is disconnected, however much it sent. Anyone may connect, and send anything.

| client sends | process 0 sends |
|---|---|
| who it is (`Hello`) | with a secret `challenge`, else `welcome` |
| `proof` | `welcome`, with its own `proof` |
| `here` | before: `ask`; once all have answered: `go`, with its `host` |

Instead, at any time: `refused`, with the reason, or `later`: the client may try again.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from itertools import chain

from jaxpar.distributed.messages import LINE_BYTES, Hello, Malformed, decode
from jaxpar.distributed.peer import Peer, Refused
from jaxpar.distributed.rendezvous.client import Client
from jaxpar.distributed.rendezvous.secret import CLIENT, FIRST, is_proof, new_nonce, prove

HELLO_S = 10.0
"""Time limit for a client to identify itself."""
ANSWER_S = 5.0
"""Time limit for an admitted client to answer that it is still there."""
CHECK_S = 0.2
MOST_UNIDENTIFIED = 512
"""Clients that may be unidentified at once; beyond that the oldest is dropped: a process of the job identifies itself
at once."""
MOST_DUPLICATES = 4
"""Clients that may wait for the place of one that is asked whether it is there; others are asked to try again."""
ACCEPTED = 64
"""Connections accepted in a row before the existing ones are served again."""
EXHAUSTED = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM
REPORT_S = 10.0
"""Seconds after which the missing processes are reported; twice that later, and so on."""
MOST_REPORTED = 4
"""Refusals that process 0 reports."""
ALIKE = "set distributed.secret_file or JAXPAR_SECRET alike for all processes"


class Admission:
    """Admits the other processes of a job.

    Args:
        processes: number of processes of the job.
        secret: shared by them; None for a job without.
        report: called with a sentence for each of the first few refusals.
    """

    def __init__(self, processes: int, secret: bytes | None, report: Callable[[str], None]):
        self._processes, self._secret, self._report = processes, secret, report
        self._selector = selectors.DefaultSelector()
        self._unidentified: dict[Client, None] = {}
        """Clients not identified yet; the oldest first."""
        self._admitted: dict[int, Client] = {}
        self._duplicates: dict[int, list[Client]] = {}
        """Clients that claim the number of an admitted one; the first is admitted if that one does not answer."""
        self._asked: dict[Client, None] = {}
        """Admitted clients whose answer is awaited, in the order in which they were asked."""
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
            wait_s = REPORT_S
            report_at = time.monotonic() + wait_s
            while not self._complete():
                if (now := time.monotonic()) >= deadline:
                    raise Refused(self._missing())
                if now >= report_at:
                    self._report(f"process 0 waits for the others ({self._missing()})")
                    wait_s *= 2
                    report_at = now + wait_s
                self._serve()
            return self._start_job()
        except Refused as refusal:
            self._broadcast({"refused": str(refusal)})
            raise
        finally:
            for client in self._clients():
                self._disconnect(client)
            self._selector.close()

    def _serve(self) -> None:
        for key, _ in self._selector.select(CHECK_S):
            if key.data is None:
                self._accept(key.fileobj)  # pyright: ignore[reportArgumentType]
            elif not key.data.gone:
                self._receive(key.data)
        now = time.monotonic()
        while self._unidentified and (oldest := next(iter(self._unidentified))).until <= now:
            self._ask_to_retry(oldest, f"the hello took longer than {HELLO_S:g} s")
        while self._asked and (first := next(iter(self._asked))).until <= now:
            self._ask_to_retry(first, f"the answer took longer than {ANSWER_S:g} s")

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED):
            try:
                connection = listener.accept()[0]
            except OSError as error:  # The client is gone, or there are no more files.
                if error.errno in EXHAUSTED:
                    if not self._unidentified:
                        raise
                    self._ask_to_retry(next(iter(self._unidentified)), "process 0 is busy")
                return
            connection.setblocking(False)
            client = Client(connection, time.monotonic() + HELLO_S)
            self._selector.register(connection, selectors.EVENT_READ, client)
            self._unidentified[client] = None
            if len(self._unidentified) > MOST_UNIDENTIFIED:
                self._ask_to_retry(next(iter(self._unidentified)), "process 0 is busy")

    def _receive(self, client: Client) -> None:
        try:
            received = client.connection.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._remove(client)
            return
        *lines, client.unread = (client.unread + received).split(b"\n")
        try:
            for line in lines:
                if not client.gone:
                    self._handle(client, line)
            if len(client.unread) > LINE_BYTES:
                raise Malformed(f"a line has more than {LINE_BYTES} bytes")
        except Malformed as error:
            self._refuse(client, f"this is not a process of this jaxpar: {error}")
        except Refused as error:
            self._refuse(client, str(error))

    def _handle(self, client: Client, line: bytes) -> None:
        if client.hello is None:
            self._identify(client, Hello.read(line))
        elif client in self._unidentified:
            self._check(client, decode(line).get("proof"))
        elif client in self._asked and decode(line).get("here") is True:
            del self._asked[client]
            for duplicate in tuple(self._duplicates.get(client.process, ())):
                self._refuse(duplicate, f"process {client.process} is there already, {client.origin}")
        else:
            raise Malformed("it was not asked")

    def _identify(self, client: Client, hello: Hello) -> None:
        client.hello = hello
        if self._secret is None and hello.nonce is not None:
            raise Refused(f"{hello.name} has a secret and process 0 has none; {ALIKE}")
        if self._secret is None:
            self._admit(client, hello)
        elif hello.nonce is None:
            raise Refused(f"process 0 has a secret and {hello.name} has none; {ALIKE}")
        else:
            client.nonce = new_nonce()
            client.send({"challenge": client.nonce})

    def _check(self, client: Client, proof: object) -> None:
        assert self._secret is not None and client.hello is not None
        if not is_proof(proof, self._secret, CLIENT, client.hello, client.nonce):
            raise Refused(f"{client.hello.name} has another secret than process 0; {ALIKE}")
        self._admit(client, client.hello)

    def _admit(self, client: Client, hello: Hello) -> None:
        """Admit a client that is known to belong to the job, if there is a place for it."""
        process = hello.process
        if hello.processes != self._processes:
            raise Refused(f"{hello.name} expects {hello.processes} processes and process 0 expects {self._processes}")
        if not 0 < process < self._processes:
            raise Refused(
                f"{hello.name} has a number that is not between 1 and {self._processes - 1}, as those of the "
                "processes other than process 0 are"
            )
        while (first := self._admitted.get(process)) is not None and first.is_closed():
            self._remove(first)
        if first is None:
            self._confirm(client)
        elif len(duplicates := self._duplicates.setdefault(process, [])) >= MOST_DUPLICATES:
            self._ask_to_retry(client, f"others claim to be process {process}")
        else:
            del self._unidentified[client]
            duplicates.append(client)
            self._ask(first)

    def _confirm(self, client: Client) -> None:
        self._unidentified.pop(client, None)
        self._admitted[client.process] = client
        self._all_asked = False
        proof = None
        if self._secret is not None:
            assert client.hello is not None
            proof = prove(self._secret, FIRST, client.hello, client.nonce)
        client.send({"welcome": True, "proof": proof})

    def _complete(self) -> bool:
        """Whether all are present. They are asked, since a closed connection is noticed late."""
        if len(self._admitted) < self._processes - 1:
            return False
        if not self._all_asked:
            self._all_asked = True
            for client in self._admitted.values():
                self._ask(client)
        return not self._asked

    def _ask(self, client: Client) -> None:
        if client not in self._asked:
            self._asked[client] = None
            client.until = time.monotonic() + ANSWER_S
            client.send({"ask": True})

    def _start_job(self) -> dict[int, Peer]:
        peers = {
            process: Peer(process, client.hello.host, client.connection)
            for process, client in self._admitted.items()
            if client.hello is not None
        }
        admitted, self._admitted = list(self._admitted.values()), {}
        self._broadcast({"later": "the job has begun"})
        for client in admitted:
            self._selector.unregister(client.connection)
            client.send({"go": True, "host": socket.gethostname()})
            client.connection.settimeout(None)
        return peers

    def _missing(self) -> str:
        missing = [str(process) for process in range(1, self._processes) if process not in self._admitted]
        if not missing:  # They are present and do not answer.
            missing = [str(client.process) for client in self._asked]
        sentence = f"not there: process {', '.join(missing[:8])}"
        if len(missing) > 8:
            sentence += f" and {len(missing) - 8} more"
        return "; ".join([sentence, *(f"refused: {why}" for why in self._refusals)])

    def _refuse(self, client: Client, why: str) -> None:
        client.send({"refused": why})
        self._remove(client)
        if client.hello is not None and why not in self._refusals and len(self._refusals) < MOST_REPORTED:
            self._refusals.append(why)
            self._report(f"process 0 refuses a process: {why}")

    def _ask_to_retry(self, client: Client, why: str) -> None:
        client.send({"later": why})
        self._remove(client)

    def _remove(self, client: Client) -> None:
        """A client is gone: the first that claims its number takes its place, and is asked if others claim it too."""
        self._disconnect(client)
        self._unidentified.pop(client, None)
        self._asked.pop(client, None)
        if client.hello is None:
            return
        process = client.process
        duplicates = self._duplicates.get(process, [])
        if client in duplicates:
            duplicates.remove(client)
        elif self._admitted.get(process) is client:
            del self._admitted[process]
            self._all_asked = False
            if duplicates:
                self._confirm(successor := duplicates.pop(0))
                if duplicates:
                    self._ask(successor)

    def _disconnect(self, client: Client) -> None:
        if not client.gone:
            client.gone = True
            self._selector.unregister(client.connection)
            client.connection.close()

    def _clients(self) -> list[Client]:
        return [*self._unidentified, *chain.from_iterable(self._duplicates.values()), *self._admitted.values()]

    def _broadcast(self, message: dict[str, object]) -> None:
        for client in self._clients():
            client.send(message)
