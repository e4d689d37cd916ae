"""The messages between a process and process 0 before it is admitted (see the table in `admission.py`)."""

from __future__ import annotations

import socket
import time

from jaxpar.distributed.messages import (
    HOST_LENGTH,
    LINE_BYTES,
    SENTENCE_LENGTH,
    Hello,
    Malformed,
    decode,
    encode,
    is_token,
    text,
)
from jaxpar.distributed.peer import Peer, Refused
from jaxpar.distributed.rendezvous.secret import CLIENT, FIRST, is_proof, new_nonce, prove


class RetryLater(Exception):
    """Process 0 asks the process to try again, with a reason."""


class Handshake:
    """One connection to process 0.

    Args:
        listener: the connection.
        process: index of this process.
        processes: number of processes that it expects.
        secret: shared with process 0; None for a job without.
        deadline: time limit, by `time.monotonic`.
    """

    def __init__(self, listener: socket.socket, process: int, processes: int, secret: bytes | None, deadline: float):
        nonce = None if secret is None else new_nonce()
        self._connection, self._secret, self._deadline = listener, secret, deadline
        self._hello = Hello(process, processes, socket.gethostname(), nonce)
        self._challenge = ""
        self.admitted = False
        """Whether process 0 has admitted this process, and proved that it knows the secret."""

    def wait(self) -> Peer:
        """Return process 0 once all are present.

        Raises:
            Refused: process 0 refuses this process, or does not know the secret.
            RetryLater: process 0 is busy.
            Malformed: the answer is not from process 0.
            OSError: it went away, or the time is up.
        """
        self._connection.sendall(self._hello.line())
        while True:
            message = decode(self._line())
            if "refused" in message:
                raise Refused(text(message["refused"], SENTENCE_LENGTH))
            if "later" in message:
                raise RetryLater(text(message["later"], SENTENCE_LENGTH))
            if "challenge" in message and self._secret is not None and not self._challenge:
                self._prove(message["challenge"])
            elif "welcome" in message and not self.admitted:
                self._check(message.get("proof"))
                self.admitted = True
            elif "ask" in message and self.admitted:
                self._connection.sendall(encode({"here": True}))
            elif "go" in message and self.admitted:
                self._connection.settimeout(None)
                return Peer(0, text(message.get("host"), HOST_LENGTH), self._connection)
            else:
                raise Malformed("its message is out of turn")

    def _prove(self, challenge: object) -> None:
        assert self._secret is not None
        if not is_token(challenge):
            raise Malformed("its nonce is not 64 hexadecimal digits")
        self._challenge = str(challenge)
        self._connection.sendall(encode({"proof": prove(self._secret, CLIENT, self._hello, self._challenge)}))

    def _check(self, proof: object) -> None:
        """The proof of process 0. One without a challenge to this process could be from another meeting."""
        if self._secret is None:
            return
        if not self._challenge or not is_proof(proof, self._secret, FIRST, self._hello, self._challenge):
            raise Refused(
                f"what listens there does not prove that it knows the secret of {self._hello.name}, so it is not "
                "process 0, or has another secret"
            )

    def _line(self) -> bytes:
        """The next line, and nothing after it: that belongs to the watch."""
        received = b""
        while not received.endswith(b"\n"):
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            there = self._connection.recv(LINE_BYTES, socket.MSG_PEEK)
            if not there:
                raise ConnectionResetError
            received += self._connection.recv(there.find(b"\n") + 1 or len(there))
            if len(received) > LINE_BYTES:
                raise Malformed(f"a line has more than {LINE_BYTES} bytes")
        return received
