"""Listeners and their fan-out."""

import errno
import inspect
import os
from pathlib import Path

import pytest

from jaxpar.observe.events import Anomaly, Listener, Listeners, RunInfo
from tests.observe.records import record, run_info, summary


class Recorder(Listener):
    """Writes down every call that it gets, in a log that it shares."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        for method, _ in inspect.getmembers(Listener, inspect.isfunction):
            setattr(self, method, lambda *_, method=method: log.append((name, method)))


def every_call(listener: Listener, folder: Path) -> list[str]:
    listener.start(run_info(folder))
    listener.step(record(1))
    listener.evaluation(1, 2.0, None)
    listener.saved(1, "checkpoints/1")
    listener.message("text")
    listener.progress("text", 1, 2)
    listener.anomaly(Anomaly(1, "slow_step", "Step 1 took long.", {}))
    listener.rewound(1)
    listener.sample("prompt", "continuation")
    listener.end(summary())
    listener.failed(ValueError("after it"))
    listener.close()
    called = "start step evaluation saved message progress anomaly rewound sample end failed close"
    return called.split()


class Hearing(Listener):
    """Keeps the messages that it gets."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def message(self, text: str) -> None:
        self.heard.append(text)


def test_what_a_listener_returns_at_the_start_is_a_message_to_all(tmp_path: Path) -> None:
    class Places(Hearing):
        def start(self, info: RunInfo) -> str:
            return f"writes to {info.folder}"

    places, recorded = Places(), []
    Listeners([places, Recorder("b", recorded)]).start(run_info(tmp_path))
    assert places.heard == [f"writes to {tmp_path}"]
    assert recorded == [("b", "start"), ("b", "message")]


def test_every_event_reaches_every_listener_in_order(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    calls = every_call(Listeners([Recorder("a", log), Recorder("b", log)]), tmp_path)
    assert log == [(name, call) for call in calls for name in ("a", "b")]
    methods = [name for name, _ in inspect.getmembers(Listener, inspect.isfunction)]
    assert sorted(calls) == sorted(methods), "an event is missing from this test"
    every_call(Listener(), tmp_path)  # which overrides nothing, and ignores everything


def test_an_anomaly_is_a_message_to_those_who_do_not_ask_for_more() -> None:
    hearing = Hearing()
    Listeners([hearing]).anomaly(Anomaly(1, "slow_step", "Step 1 took long.", {"seconds": 9.0}))
    assert hearing.heard == ["Step 1 took long."]


class Faulty(Listener):
    """Raises an error in a method, by default in every step."""

    def __init__(self, error: Exception, method: str = "step") -> None:
        self.error = error
        setattr(self, method, self.fail)

    def fail(self, *_: object) -> None:
        raise self.error


def test_an_error_in_a_listener_is_not_swallowed_and_all_are_closed(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    with pytest.raises(ValueError, match="a fault"):
        Listeners([Faulty(ValueError("a fault"))]).step(record(1))
    with pytest.raises(OSError, match="disk is full"):
        Listeners([Recorder("a", log), Faulty(OSError("disk is full"), "close"), Recorder("b", log)]).close()
    assert log == [("a", "close"), ("b", "close")]
    with pytest.raises(OSError, match="disk is full"):  # a run does not start without a file that it writes
        Listeners([Faulty(OSError("disk is full"), "start")]).start(run_info(tmp_path))


def test_a_full_disk_is_reported_to_the_others_and_the_run_goes_on() -> None:
    log: list[tuple[str, str]] = []
    hearing, disk = Hearing(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    Listeners([Recorder("a", log), Faulty(disk), hearing, Recorder("b", log)]).step(record(1))
    assert hearing.heard == ["Faulty: No space left on device; training goes on."]
    assert log == [("a", "step"), ("a", "message"), ("b", "message"), ("b", "step")]
