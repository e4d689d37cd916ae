"""Listeners and their fan-out."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from jaxpar.observe.events import Listener, Listeners
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
    listener.sample("prompt", "continuation")
    listener.end(summary())
    listener.close()
    return ["start", "step", "evaluation", "saved", "message", "sample", "end", "close"]


def test_every_event_reaches_every_listener_in_order(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    calls = every_call(Listeners([Recorder("a", log), Recorder("b", log)]), tmp_path)
    assert log == [(name, call) for call in calls for name in ("a", "b")]
    methods = [name for name, _ in inspect.getmembers(Listener, inspect.isfunction)]
    assert sorted(calls) == sorted(methods), "an event is missing from this test"


def test_a_listener_that_overrides_nothing_hears_everything_quietly(tmp_path: Path) -> None:
    every_call(Listener(), tmp_path)


def test_all_are_closed_when_one_fails_to_close() -> None:
    log: list[tuple[str, str]] = []

    class Broken(Listener):
        def close(self) -> None:
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"):
        Listeners([Recorder("a", log), Broken(), Recorder("b", log)]).close()
    assert log == [("a", "close"), ("b", "close")]


def test_an_error_in_a_listener_is_not_swallowed(tmp_path: Path) -> None:
    class Broken(Listener):
        def step(self, record) -> None:
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"):
        Listeners([Broken()]).step(record(1))
