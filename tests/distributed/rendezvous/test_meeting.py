"""Processes meet: all go on together, or each gets one sentence that names who or what is missing."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxpar.config import UserError
from jaxpar.distributed.rendezvous import admission, meeting
from jaxpar.distributed.rendezvous.meeting import meet
from tests.distributed.rendezvous.clients import call, hello
from tests.patience import seconds
from tests.sentences import refused

LONG = seconds(20)


def outcome(*call: object) -> str:
    """What `meet` says: `met` with whom, or the words in parentheses of its sentence."""
    try:
        peers = meet(*call)  # pyright: ignore[reportArgumentType]
    except UserError as error:
        result = str(error)
    else:
        for peer in peers.values():
            peer.connection.close()
        assert all(peer.host == socket.gethostname() for peer in peers.values())
        return f"met {' '.join(map(str, sorted(peers)))}".rstrip()
    assert result.startswith(
        f"distributed.coordinator is {call[0]!r}: process {call[2]} of {call[1]} could not join within "
    )
    return result.split(" (", 1)[1].rstrip(")")


def together(*calls: Callable[[], str]) -> list[str]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def later(seconds: float, call: Callable[[], str]) -> Callable[[], str]:
    def wait_and_call() -> str:
        time.sleep(seconds)
        return call()

    return wait_and_call


def test_all_go_on_once_everybody_is_there_whoever_comes_first(address: str):
    calls = [later(delay, lambda i=i: outcome(address, 5, i, 20)) for i, delay in enumerate((0.3, 0, 0.1, 0.6, 0.2))]
    began = time.monotonic()
    assert together(*calls) == ["met 1 2 3 4", *["met 0"] * 4]
    assert time.monotonic() - began >= 0.6


def test_a_single_process_joins_at_once_and_the_port_is_free_again(address: str):
    assert outcome(address, 1, 0, 5) == "met"
    for _ in range(3):
        assert together(*[lambda i=i: outcome(address, 3, i, 20) for i in range(3)]) == ["met 1 2", "met 0", "met 0"]
        with socket.create_server(("127.0.0.1", int(address.split(":")[1]))):
            pass


def test_all_processes_are_sent_who_is_missing(address: str):
    calls = [lambda i=i, t=t: outcome(address, 5, i, t) for i, t in ((0, 1), (2, 20), (4, 20))]
    assert together(*calls) == ["not there: process 1, 3"] * 3


def test_without_process_0_the_others_report_it_in_time(address: str):
    sentence = outcome(address, 2, 1, 0.5)
    assert sentence.startswith("process 0 is not there") and "127.0.0.1" in sentence, "a loopback address is named"


def test_a_process_that_waits_is_reported_while_it_waits(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "REPORT_S", 0.2)
    monkeypatch.setattr(meeting, "REPORT_S", 0.2)
    reports: dict[int, list[str]] = {0: [], 1: []}
    for process, named in ((1, "process 0"), (0, "process 1")):
        with refused("could not join"):
            meet(address, 2, process, 1.0, report=reports[process].append)
        assert 2 <= len(reports[process]) <= 3 and all(named in sentence for sentence in reports[process])


def test_one_that_cannot_wait_any_longer_states_that_others_were_missing(address: str):
    calls = [lambda: outcome(address, 3, 0, 2), lambda: outcome(address, 3, 1, 0.5)]
    assert together(*calls) == ["not there: process 1, 2", "process 0 was there, and others were missing"]


def test_a_restarted_process_takes_its_own_place(address: str):
    def restart() -> str:
        call(address, hello(1, 2)).close()
        return outcome(address, 2, 1, LONG)

    assert together(lambda: outcome(address, 2, 0, LONG), restart) == ["met 1", "met 0"]


def test_a_port_in_use_and_an_unknown_host_are_reported(address: str):
    with socket.create_server(("", int(address.split(":")[1]))):
        assert outcome(address, 2, 0, 5) == "Address already in use"
    assert "'no-such-host.invalid'" in outcome("no-such-host.invalid:1234", 2, 1, 1)


def test_process_0_states_when_the_address_is_that_of_another_machine(address: str):
    port = address.split(":")[1]
    result = outcome(f"203.0.113.7:{port}", 2, 0, 0.2)  # An address that documents use and nobody has.
    assert all(part in result for part in ("not there: process 1", "203.0.113.7", socket.gethostname(), "process 0"))


def test_the_connections_stay_and_carry_what_follows(address: str):
    with ThreadPoolExecutor(2) as pool:
        [first, second] = [pool.submit(meet, address, 2, i, 20).result for i in range(2)]
        mine, yours = first()[1].connection, second()[0].connection
    with mine, yours, socket.create_server(("127.0.0.1", int(address.split(":")[1]))):
        mine.sendall(b"hello")
        assert yours.recv(5) == b"hello"
