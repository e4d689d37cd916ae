"""Watches of several processes, here in one, over real connections: who is lost is reported to all."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxpar.distributed import verdicts
from jaxpar.distributed import watch as watching
from jaxpar.distributed.activity import Activity
from jaxpar.distributed.evidence import evidence, ras
from jaxpar.distributed.peer import Peer
from jaxpar.distributed.verdicts import Mark
from jaxpar.distributed.watch import Watch
from tests.patience import seconds

START = Mark(0, "starting", 60.0, "distributed.pause_timeout_s")


class Member:
    """One process: its watch, and what it ended with."""

    def __init__(self, process: int, processes: int, peers: dict[int, Peer], timeout_s: float):
        self.ended: list[str] = []
        self.ended_event = threading.Event()
        self.watch = Watch(process, processes, peers, timeout_s=timeout_s, mark=START, end=self._end)

    def _end(self, sentence: str) -> None:
        self.ended.append(sentence)
        self.ended_event.set()

    def verdict(self) -> str:
        assert self.ended_event.wait(seconds(20)), "no verdict"
        [sentence] = self.ended
        return sentence


class Stage:
    """Process 0 and the others, connected; some of the others have no watch, and are what a test makes of them."""

    def __init__(self, processes: int, *, without: tuple[int, ...] = (), timeout_s: float = 20.0):
        pairs = {number: socket.socketpair() for number in range(1, processes)}
        self.loose = {number: pairs[number][1] for number in without}
        peers = {number: Peer(number, f"node-{number}", pair[0]) for number, pair in pairs.items()}
        self.members = {0: Member(0, processes, peers, timeout_s)}
        for number, (_, own) in pairs.items():
            if number not in without:
                self.members[number] = Member(number, processes, {0: Peer(0, "node-0", own)}, timeout_s)

    def verdicts(self) -> set[str]:
        return {member.verdict() for member in self.members.values()}

    def quiet(self) -> bool:
        return not any(member.ended for member in self.members.values())

    def leave(self) -> None:
        with ThreadPoolExecutor(len(self.members)) as pool:
            for left in [pool.submit(member.watch.leave) for member in self.members.values()]:
                left.result(timeout=seconds(20))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    """Makes a `Stage`; at the end nothing of it is open."""
    monkeypatch.setattr(watching, "GRACE_S", 0.2)
    monkeypatch.setattr(watching, "LINGER_S", 0.5)
    stages: list[Stage] = []

    def make(*arguments: int, **options: object) -> Stage:
        stages.append(Stage(*arguments, **options))  # pyright: ignore[reportArgumentType]
        return stages[-1]

    yield make
    for made in stages:
        for member in made.members.values():
            member.watch.close()
        for connection in made.loose.values():
            connection.close()


def test_processes_that_end_well_are_not_reported(stage: Callable[..., Stage]):
    job = stage(4)
    job.members[2].watch.mark("in step 1", 600, "distributed.step_timeout_s")
    job.leave()
    assert job.quiet()


def test_nobody_leaves_before_all_do(stage: Callable[..., Stage]):
    job = stage(2)
    early = threading.Thread(target=job.members[1].watch.leave)
    early.start()
    early.join(0.5)
    assert early.is_alive()
    job.members[0].watch.leave()
    early.join(10)
    assert not early.is_alive() and job.quiet()


def test_one_that_dies_is_named_to_everybody_with_what_it_was_at(stage: Callable[..., Stage]):
    job = stage(4, without=(2,))
    report = b'{"at": {"count": 5, "at": "in step 12", "limit_s": 600, "limit_key": "k", "age_s": 1.0}}\n'
    job.loose[2].sendall(report)
    time.sleep(0.3)
    job.loose[2].close()
    [message] = job.verdicts()
    assert message.startswith("process 2 on node-2 died (it was in step 12, last heard of ")


def test_process_0_that_dies_is_noticed_by_the_others():
    ours, theirs = socket.socketpair()
    member = Member(1, 2, {0: Peer(0, "node-0", theirs)}, 20.0)
    ours.close()
    assert member.verdict().startswith("process 0 on node-0 died (it was starting, ")


def test_one_that_dies_while_the_others_are_at_their_end_is_named(stage: Callable[..., Stage]):
    job = stage(3, without=(2,))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(job.members[number].watch.leave) for number in (0, 1)]
        time.sleep(0.3)
        job.loose[2].close()
        [message] = job.verdicts()
        for left in waiting:
            left.result(timeout=seconds(10))
    assert message.startswith("process 2 on node-2 died")


def test_a_process_that_was_stopped_itself_does_not_hold_that_time_against_the_others(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
):
    asleep = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda clock=time.monotonic: clock() + asleep[0])
    job = stage(2)
    time.sleep(0.3)
    asleep[0] = 1000.0
    time.sleep(1.5)
    assert job.quiet()


def test_one_that_is_silent_is_named_after_the_timeout(stage: Callable[..., Stage]):
    began = time.monotonic()
    job = stage(3, without=(1,), timeout_s=4)
    [message] = job.verdicts()
    assert time.monotonic() - began > 4
    assert message.startswith("process 1 on node-1 gave no sign of life for 4 s")


def test_one_that_does_not_get_on_is_named_to_everybody(stage: Callable[..., Stage]):
    job = stage(3)
    for number, member in job.members.items():
        member.watch.mark("in step 1", 0.5, "distributed.step_timeout_s")
        if number != 1:
            member.watch.mark("waiting for step 1", 0.5, "distributed.step_timeout_s")
    [message] = job.verdicts()
    assert message.startswith("process 1 on node-1 made no progress for 0.5 s (distributed.step_timeout_s), and the ")
    assert "; stack of process 1: " in message and " < " in message, "where its main thread is"


def test_a_verdict_on_a_hang_has_the_collectives_of_nccl(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ras, "explain", lambda _: "rank 1 launched 3 of AllReduce")
    job = stage(3)
    for member in job.members.values():
        member.watch.mark("in step 1", 0.5, "distributed.step_timeout_s")
    [message] = job.verdicts()
    assert message.startswith("no process made progress for 0.5 s")
    assert "; rank 1 launched 3 of AllReduce; stack of process 0: " in message and "; stack of process 2: " in message


def test_one_that_goes_on_while_the_evidence_is_collected_is_let_go(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
):
    asked, answered = threading.Event(), threading.Event()

    def explain(_: object) -> None:
        asked.set()
        answered.wait(seconds(20))

    monkeypatch.setattr(ras, "explain", explain)
    monkeypatch.setattr(evidence, "WAIT_S", seconds(20))
    job = stage(2)
    for member in job.members.values():
        member.watch.mark("in step 1", 0.5, "distributed.step_timeout_s")
    assert asked.wait(seconds(20))
    for member in job.members.values():
        member.watch.mark("evaluating", 60, "distributed.pause_timeout_s")
    time.sleep(1.0)
    answered.set()
    time.sleep(1.0)
    assert job.quiet()


def test_one_that_gets_on_is_never_late(stage: Callable[..., Stage]):
    job = stage(2)
    for step in range(12):
        for member in job.members.values():
            member.watch.mark(f"in step {step}", 2.5, "distributed.step_timeout_s")
        time.sleep(0.25)
    for member in job.members.values():
        member.watch.mark("evaluating", 60, "distributed.pause_timeout_s")
    time.sleep(2.7)
    assert job.quiet()


def test_one_that_saves_is_not_hurried_by_those_in_the_next_step(stage: Callable[..., Stage]):
    job = stage(3, timeout_s=6)
    for member in job.members.values():
        member.watch.mark("saving step 1", 60, "distributed.pause_timeout_s")
    for number in (0, 2):
        job.members[number].watch.mark("in step 2", 1.5, "distributed.step_timeout_s", 60)
    time.sleep(2)
    assert job.quiet()
    # It goes on, and is ahead before the others have noticed: by then they have waited for it longer than a step may.
    for at in ("in step 2", "waiting for step 2"):
        job.members[1].watch.mark(at, 10, "distributed.step_timeout_s", 60)
    time.sleep(0.8)
    assert job.quiet()
    [message] = job.verdicts()
    assert (
        message.startswith("process 0 on ")
        and " made no progress for 1.5 s (distributed.step_timeout_s), and " in message
    )


def test_one_that_hangs_at_the_start_is_named_by_what_it_does_not_use(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verdicts, "IDLE_S", 1.0)
    monkeypatch.setattr(Activity, "idle_s", lambda _: 30.0)
    job = stage(3, timeout_s=6)
    for member in job.members.values():
        member.watch.mark("opening its data", 60, "distributed.pause_timeout_s", busy=True)
    for number in (0, 2):
        job.members[number].watch.mark("looking into its folder", 60, "distributed.pause_timeout_s")
    [message] = job.verdicts()
    assert message.startswith(
        "process 1 on node-1 did nothing for 1 s, and the others wait for it (it was opening its "
    )


@pytest.mark.parametrize("failing", [0, 2])
def test_one_that_fails_sends_the_others_the_reason(stage: Callable[..., Stage], failing: int):
    job = stage(3)
    job.members[failing].watch.fail("data.path: not there")
    [message] = {member.verdict() for number, member in job.members.items() if number != failing}
    assert message.startswith(f"process {failing} on ")
    assert message.endswith(" stopped (it was starting) and reported: data.path: not there")


def test_processes_that_all_fail_for_one_reason_each_report_it(stage: Callable[..., Stage]):
    job = stage(3)
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(member.watch.fail, "no such file") for member in job.members.values()]:
            done.result(timeout=seconds(10))
    time.sleep(0.5)
    assert job.quiet()


def small_connection() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection that stores a few kB in each direction."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        near.connect(server.getsockname())
        return near, server.accept()[0]


@pytest.mark.parametrize("process", [0, 1])
def test_a_peer_that_reads_late_gets_no_torn_line_and_the_last_message(process: int, monkeypatch: pytest.MonkeyPatch):
    """As one that was stopped for a while, or whose network was slow: its job is healthy."""
    monkeypatch.setattr(watching, "WAKE_S", 0.001)
    monkeypatch.setattr(watching, "BEATS", 10**5)
    monkeypatch.setattr(watching, "LINGER_S", seconds(20))
    monkeypatch.setattr(watching, "GRACE_S", 0.0)
    near, far = small_connection()
    member = Member(process, 2, {1 - process: Peer(1 - process, "far", near)}, 60.0)
    member.watch.mark("x" * 1000, 600, "distributed.step_timeout_s")
    time.sleep(0.5)
    with far, ThreadPoolExecutor(1) as pool:
        failing = pool.submit(member.watch.fail, "y" * 1000)
        received = b""
        far.settimeout(seconds(20))
        while b"y" * 900 not in received or not received.endswith(b"\n"):
            received += far.recv(777)
        far.shutdown(socket.SHUT_RDWR)
        failing.result(timeout=seconds(20))
    lines = [json.loads(line) for line in received.splitlines()]
    assert 2 < len(lines) < 200, "some reports, but none stored for a peer that is behind"
    member.watch.close()


def test_a_watch_that_breaks_ends_its_process(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch):
    def fail(line: bytes) -> dict[str, object]:
        raise ZeroDivisionError(line)

    monkeypatch.setattr(watching, "decode", fail)
    job = stage(2, without=(1,))
    job.loose[1].sendall(b"{}\n")
    assert "the watch over the other processes broke" in job.members[0].verdict()


@pytest.mark.parametrize(
    "message",
    [
        b"no JSON\n", b"\xff\n", b"[]\n", b"[" * 9000 + b"\n", b"x" * (watching.LINE_BYTES + 1), b'{"at": {}}\n',
        b'{"at": {"count": 1, "at": "a", "limit_s": "\xc2\xb2", "limit_key": "k", "age_s": NaN}}\n', b'{"failed": 3}\n',
        b'{"end": ["a"]}\n',
    ],
    ids=lambda message: repr(message[:12]),
)  # fmt: skip
def test_one_that_sends_what_no_watch_sends_is_named_to_everybody(stage: Callable[..., Stage], message: bytes):
    job = stage(3, without=(1,))
    job.loose[1].sendall(message)
    [verdict] = job.verdicts()
    assert verdict.startswith("process 1 on node-1 sent something that is not a message of the watch (")


def test_what_another_process_sends_is_reported_without_control_characters(stage: Callable[..., Stage]):
    job = stage(3, without=(1,))
    report = {"count": 5, "at": "in\x1b[2J step" + "y" * 500, "limit_s": 600, "limit_key": "k", "age_s": 1.0}
    message = {"failed": "\x1b]0;owned\x07\r\n" + "x" * 5000, "at": report}
    job.loose[1].sendall(json.dumps(message).encode() + b"\n")
    [verdict] = job.verdicts()
    assert verdict.isprintable() and len(verdict) < 1400
    assert verdict.startswith("process 1 on node-1 stopped (it was in?[2J stepyyy")
    assert "...) and reported: ?]0;owned???xxx" in verdict and verdict.endswith("x...")


def test_the_verdict_of_process_0_is_reported_without_control_characters(stage: Callable[..., Stage]):
    ours, theirs = socket.socketpair()
    member = Member(1, 2, {0: Peer(0, "node-0", theirs)}, 20.0)
    with ours:
        ours.sendall(json.dumps({"end": "\x1b[2J" + "x" * 5000}).encode() + b"\n")
        verdict = member.verdict()
        member.watch.close()
    assert verdict == "?[2J" + "x" * 1993 + "..."


def test_a_process_that_fails_with_a_long_sentence_reports_its_beginning(stage: Callable[..., Stage]):
    job = stage(2)
    job.members[1].watch.fail("z" * 10**7)
    assert job.members[0].verdict().endswith(" and reported: " + "z" * 997 + "...")
