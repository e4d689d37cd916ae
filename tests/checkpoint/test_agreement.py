"""Agreement of processes, with a stand-in of the coordination service: who sends how much, and who is missing."""

import itertools
from unittest import mock

import jax
import pytest

from benchmarks.agreement import Service, events, measured
from jaxpar.checkpoint import processes
from jaxpar.checkpoint.errors import CheckpointError
from jaxpar.observe.stragglers import logs_between

DIGITS = 16
"""Bytes by which the numbers in keys may differ."""


@pytest.mark.parametrize("event", events())
def test_messages_do_not_grow_with_the_number_of_processes(event: str):
    call = events()[event]
    few, many = ([measured(call, count, index) for index in (0, 1)] for count in (8, 1024))
    assert [one.messages for one in few] == [one.messages for one in many]
    assert abs(few[1].bytes - many[1].bytes) <= DIGITS and many[1].bytes < 1024
    assert many[0].bytes <= 1024 / 8 * few[0].bytes, "process 0 reads a text of each process, once a gathering"


def test_process_0_reads_a_bounded_number_of_notes_a_log():
    """A note of each process at a comparison, and the rarer comparisons, the more processes there are; the monitor
    counts logs (`test_large_jobs_compare_their_processes_every_few_logs`)."""
    compare = events()["a comparison of paces"]
    a_log = [measured(compare, count, 0).bytes / logs_between(count) for count in (1024, 16_384, 100_000)]
    assert max(a_log) <= 1.01 * a_log[0] < 512 * 1024
    assert [logs_between(count) for count in (2, 1024, 1025)] == [1, 1, 2]


def test_answers_are_deleted_once_all_processes_have_read_them():
    service = Service(3)

    def some() -> None:
        for number in range(5):
            assert processes.run_on_process_0(lambda number=number: {"n": number}) == {"n": number}
        assert processes.judged("mine", len) == 3

    with job(service, 0):
        some()
        some()
    assert len(service.values) == 1, "the last answer, which others may still read"


def test_answers_do_not_pile_up_between_saves():
    service = Service(2)
    with job(service, 0), mock.patch.object(processes, "MOST_FILED", 1000):
        for _ in range(20):
            processes.run_on_process_0(lambda: "x" * 300)
            assert sum(map(len, service.values.values())) < 2000


def test_an_interrupt_of_process_0_is_raised_there_and_answered():
    service = Service(2)

    def work() -> None:
        raise KeyboardInterrupt

    with job(service, 0), pytest.raises(KeyboardInterrupt):
        processes.run_on_process_0(work)
    assert "interrupted" in next(iter(service.values.values()))


class _Absent(Service):
    """One in which two processes never come."""

    def wait_at_barrier(self, key: str, timeout_ms: int) -> None:
        super().wait_at_barrier(key, timeout_ms)
        for process in (1, 3):
            del self.values[f"{key}/{process:06d}"]
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: barrier")


def test_a_process_that_does_not_come_is_named_by_process_0():
    for index, named in ((0, "process 1 and 1 more"), (2, "other processes")):
        service = _Absent(4)
        with job(service, index), pytest.raises(TimeoutError, match=f"^{named} .* 7 seconds"):
            processes.gather("mine", meeting="save", timeout_s=7)
        assert len(service.values) == (0 if index == 0 else 2)


def test_a_service_that_fails_is_not_a_process_that_is_late():
    service = Service(2)
    error = jax.errors.JaxRuntimeError("UNAVAILABLE: connection lost\nmore")
    with (
        job(service, 1),
        mock.patch.object(service, "blocking_key_value_get", side_effect=error),
        pytest.raises(TimeoutError, match="UNAVAILABLE: connection lost"),
    ):
        processes.run_on_process_0(str)


def test_an_error_of_process_0_reaches_all():
    service = Service(2)

    def work() -> None:
        raise OSError("the disk is full")

    with job(service, 0), pytest.raises(OSError, match="the disk is full"):
        processes.run_on_process_0(work)
    [(key, _)] = service.values.items()
    with (
        job(service, 1),
        mock.patch.object(service, "blocking_key_value_get", return_value=service.values[key]),
        pytest.raises(CheckpointError, match="the disk is full"),
    ):
        processes.run_on_process_0(work)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 30])
def test_bytes_of_process_0_reach_all_in_pieces(size: int):
    service, made = Service(2), bytes(range(size))
    with mock.patch.object(processes, "PIECE", 8):
        with job(service, 0), mock.patch.object(processes, "_answers", itertools.count()):
            assert processes.bytes_of_process_0(lambda: made) == made
        assert max(len(text) for text in service.values.values()) < 40
        with job(service, 1), mock.patch.object(processes, "_answers", itertools.count()):
            assert processes.bytes_of_process_0(lambda: b"of another process") == made


def job(service: Service, index: int):
    """This process is `index` of the job of `service`."""
    return mock.patch.multiple(
        processes,
        _client=mock.Mock(return_value=service),
        jax=mock.Mock(process_count=lambda: service.count, process_index=lambda: index, errors=jax.errors),
    )
