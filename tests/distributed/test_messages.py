"""Lines from the network are read, or are malformed; there is no third."""

import contextlib
import json
from dataclasses import astuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxpar.distributed.messages import HOST_LENGTH, Hello, Malformed, Report, clean, decode
from jaxpar.distributed.verdicts import Mark

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
"""Anything that JSON can hold."""


@settings(deadline=None)
@given(st.binary(max_size=200))
@example("jaxpar ² 2 h".encode())
@example(b"[" * 8000)
@example(b"9" * 5000)
@example(b'{"jaxpar": 1, "process": 1e999, "processes": NaN, "host": "\\ud800", "nonce": null}')
def test_any_bytes_are_malformed_or_a_hello(line: bytes):
    with contextlib.suppress(Malformed):
        Hello.read(line)


@settings(deadline=None)
@given(st.fixed_dictionaries({
    "jaxpar": st.just(1) | VALUES, "process": st.integers() | VALUES, "processes": st.integers() | VALUES,
    "host": st.text() | VALUES, "nonce": st.none() | VALUES,
}))  # fmt: skip
def test_a_hello_holds_numbers_and_a_name_that_can_be_printed(found: dict[str, object]):
    with contextlib.suppress(Malformed):
        read = Hello.read(json.dumps(found).encode())
        assert type(read.process) is type(read.processes) is int and min(read.process, read.processes) >= 0
        assert read.host.isprintable() and 0 < len(read.host) <= HOST_LENGTH
        assert Hello.read(read.line()) == read


@settings(deadline=None)
@given(VALUES | st.fixed_dictionaries(
    {"count": st.integers(0, 9) | VALUES, "at": st.text() | VALUES, "limit_s": st.floats() | VALUES,
     "limit_key": st.text() | VALUES, "age_s": st.floats() | VALUES},
    optional={"waiting_limit_s": VALUES, "busy": VALUES, "idle_s": VALUES},
))  # fmt: skip
def test_a_report_of_any_values_is_malformed_or_can_be_judged(found: object):
    with contextlib.suppress(Malformed):
        report = Report.read(decode(json.dumps({"at": found}).encode())["at"])
        assert report.mark.at.isprintable() and report.mark.limit_key.isprintable()
        assert abs(report.age_s) + abs(report.idle_s) + 1 > 0 and f"{report.mark.limit_s:g}"


def test_a_report_arrives_as_it_was_sent():
    report = Report(Mark(7, "in step 3", 45.0, "distributed.step_timeout_s", 600.0, True), 1.5, 0.25)
    assert astuple(Report.read(decode(json.dumps(report.message()).encode()))) == astuple(report)


def test_a_limit_may_be_as_large_as_it_is_written():
    read = Report.read({"count": 0, "at": "a", "limit_s": 10**400, "limit_key": "k", "age_s": 0})
    assert read.mark.limit_s == float("inf")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("node-1", "node-1"), ("a\x1b[31m\n\x07b", "a?[31m??b"), ("é\u202e", "é?"), ("x" * 30, "x" * 17 + "...")],
)  # fmt: skip
def test_control_characters_are_not_shown_and_long_texts_are_cut(text: str, shown: str):
    assert clean(text, 20) == shown
