"""Whoever connects to process 0 and whatever it says: the job goes on, and who is refused hears why."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from jaxpar.config import UserError
from jaxpar.distributed.messages import LINE_BYTES
from jaxpar.distributed.rendezvous import admission
from jaxpar.distributed.rendezvous.meeting import meet
from tests.distributed.rendezvous.clients import answer, call, hello, line, receive
from tests.patience import seconds

PROCESSES = 3
NO_PROCESS = "this is not a process of this jaxpar: "


class First:
    """Process 0 of three, which waits for the others in a thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.reported: list[str] = []
        self.hosts: dict[int, str] = {}
        self.refusal = ""
        self._thread = threading.Thread(target=self._run)

    def start(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._thread.start()

    def _run(self) -> None:
        try:
            peers = meet(self.address, PROCESSES, 0, self._timeout_s, report=self.reported.append)
        except UserError as error:
            self.refusal = str(error)
            return
        for peer in peers.values():
            self.hosts[peer.process] = peer.host
            peer.connection.close()

    def visit(self, process: int) -> None:
        for peer in meet(self.address, PROCESSES, process, seconds(20)).values():
            peer.connection.close()

    def complete(self, *processes: int) -> None:
        """The others come, and the meeting ends as it should."""
        clients = [threading.Thread(target=self.visit, args=(process,)) for process in processes or (1, 2)]
        for client in clients:
            client.start()
        for thread in (*clients, self._thread):
            thread.join(seconds(30))
        assert sorted(self.hosts) == [1, 2], self.refusal

    def join(self) -> None:
        self._thread.join(seconds(30))
        assert not self._thread.is_alive()


@pytest.fixture
def first(address: str) -> Iterator[First]:
    """Process 0, at its meeting."""
    made = First(address)
    made.start(seconds(60))
    yield made
    if not made.hosts and not made.refusal:
        with contextlib.suppress(AssertionError):
            made.complete()


STRANGE = [
    b"\n", b"\xff\xfe\x00\n", b"GET / HTTP/1.1\r\n\r\n", "jaxpar ² 2 h\n".encode(), b"jaxpar 1 2 host\n",
    b"[" * (LINE_BYTES - 2) + b"\n", b'{"jaxpar": ' + b"9" * 5000 + b"}\n", b"x" * (2 * LINE_BYTES),
    line({"here": True}), line([1, 2]), hello("²", 3), hello(True, 3), hello(1.0, 3), hello(-1, 3), hello(10**400, 3),
    hello(1, None), hello(1, 3, host=["a"]), hello(1, 3, host=""), hello(1, 3, nonce="²" * 64), hello(1, 3, nonce=7),
    hello(1, 3, jaxpar=2), hello(1, 3, jaxpar=True),
]  # fmt: skip


def test_unidentified_clients_are_refused_and_disturb_nothing(first: First):
    for sent in STRANGE:
        assert answer(first.address, sent)["refused"].startswith(NO_PROCESS), sent
    call(first.address).close()
    call(first.address, b"{").close()
    first.complete()
    assert first.reported == []


def test_slow_clients_delay_no_other(first: First):
    slow = [call(first.address, sent) for sent in (b"", b"{", hello(1, 3)[:-1])]
    first.complete()
    for listener in slow:
        with listener:
            assert receive(listener) == {"later": "the job has begun"}


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(first: First, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "HELLO_S", 0.5)
    until = time.monotonic() + seconds(20)
    with call(first.address) as listener:
        listener.settimeout(0.05)
        received = b""
        while not received.endswith(b"\n"):
            assert time.monotonic() < until, "still heard"
            with contextlib.suppress(TimeoutError):
                listener.sendall(b" ")
                received += listener.recv(1000)
    assert received == line({"later": "the hello took longer than 0.5 s"})
    first.complete()


def test_the_oldest_of_too_many_unidentified_clients_is_disconnected(first: First, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "MOST_UNIDENTIFIED", 2)
    listeners = [call(first.address) for _ in range(3)]
    assert receive(listeners[0]) == {"later": "process 0 is busy"}
    for listener in listeners:
        listener.close()
    first.complete()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (hello(5, 3), "process 5 on node-b has a number that is not between 1 and 2, as those of the"),
        (hello(0, 3), "process 0 on node-b has a number that is not between 1 and 2, as those of the"),
        (hello(1, 4), "process 1 on node-b expects 4 processes and process 0 expects 3"),
        (hello(5, 2), "process 5 on node-b expects 2 processes and process 0 expects 3"),
    ],
    ids=["5 of 3", "0 of 3", "1 of 4", "5 of 2"],
)  # fmt: skip
def test_a_process_of_another_job_is_refused_with_the_reason(first: First, sent: bytes, why: str):
    assert answer(first.address, sent)["refused"].startswith(why)
    first.complete()
    [notice] = first.reported
    assert notice.startswith(f"process 0 refuses a process: {why}")


def goes_on_with(first: First, listener: socket.socket) -> None:
    """Process 2 comes, and process 1, which is `listener`, answers that it is still there."""
    client = threading.Thread(target=first.visit, args=(2,))
    client.start()
    assert receive(listener) == {"ask": True}
    listener.sendall(line({"here": True}))
    assert "go" in receive(listener)
    client.join(seconds(20))


def test_the_first_process_of_a_number_stays_and_each_other_is_refused(first: First):
    with call(first.address, hello(1, 3, host="node-a")) as listener:
        assert receive(listener)["welcome"]
        with call(first.address, hello(1, 3)) as second:
            assert receive(listener) == {"ask": True}
            with call(first.address, hello(1, 3)) as third:
                time.sleep(0.3)
                listener.sendall(line({"here": True}))
                for other in (second, third):
                    assert receive(other) == {"refused": "process 1 is there already, on node-a"}
        goes_on_with(first, listener)
    first.join()
    assert first.hosts[1] == "node-a"


@pytest.mark.parametrize("silent", [1, 2, 7])
def test_silent_clients_with_its_number_do_not_keep_a_process_out(
    first: First, silent: int, monkeypatch: pytest.MonkeyPatch
):
    """As one whose host lost power, so that its connection never ends."""
    monkeypatch.setattr(admission, "ANSWER_S", 0.1)
    with contextlib.ExitStack() as stack:
        lost = [stack.enter_context(call(first.address, hello(1, 3, host="node-a"))) for _ in range(silent)]
        assert receive(lost[0])["welcome"]
        first.complete()
    assert first.hosts[1] == socket.gethostname() and first.reported == []


def test_refusals_are_named_when_somebody_is_missing(address: str):
    first = First(address)
    first.start(seconds(2))
    answer(first.address, hello(1, 4))
    first.join()
    why = "process 1 on node-b expects 4 processes and process 0 expects 3"
    assert first.refusal.endswith(f"(not there: process 1, 2; refused: {why})")


def test_what_a_client_sends_is_printed_and_kept_without_control_characters(first: First):
    host = "\x1b[2Ja\r\n\u202eb" + "x" * 1000
    shown = "?[2Ja???b" + "x" * 116 + "..."
    why = f"process 1 on {shown} expects 4 processes and process 0 expects 3"
    assert answer(first.address, hello(1, 4, host=host)) == {"refused": why}
    with call(first.address, hello(1, 3, host=host)) as listener:
        assert receive(listener)["welcome"]
        goes_on_with(first, listener)
    first.join()
    assert first.reported == [f"process 0 refuses a process: {why}"]
    assert first.hosts[1] == shown


@pytest.fixture
def impostor() -> Iterator[Callable[[bytes], str]]:
    """The sentence of a process that comes to somebody who is not process 0 and says this."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(sent: bytes) -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener = server.accept()[0]
                    listener.sendall(sent)
                    listeners.append(listener)

        def visit(sent: bytes) -> str:
            threading.Thread(target=serve, args=(sent,), daemon=True).start()
            with pytest.raises(UserError) as caught:
                meet(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, seconds(0.5))
            return str(caught.value)

        listeners: list[socket.socket] = []
        yield visit
        server.shutdown(socket.SHUT_RDWR)
        for listener in listeners:
            listener.close()


@pytest.mark.parametrize(
    "sent",
    [b"\n", b"\xff\n", b"[" * 4000 + b"\n", b"x" * (2 * LINE_BYTES), line({"go": True}), line({"challenge": "²"}),
     line({"refused": 7}), line({"ask": True}), line({"welcome": True}) * 2],
    ids=lambda sent: repr(sent[:12]),
)  # fmt: skip
def test_a_process_that_finds_somebody_else_reports_it(impostor: Callable[[bytes], str], sent: bytes):
    assert "(what listens there is not process 0 of this jaxpar: " in impostor(sent)


def test_what_process_0_sends_is_printed_without_control_characters(impostor: Callable[[bytes], str]):
    assert impostor(line({"refused": "\x1b]0;owned\x07" + "x" * 5000})).endswith(f"(?]0;owned?{'x' * 987}...)")
