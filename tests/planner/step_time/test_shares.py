"""The shares of messages that are waited for, of rows of a table of programs."""

from __future__ import annotations

import pytest

from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.layout import Layout
from jaxpar.planner.step_time.exposed import (
    Program,
    exposed,
    generation_of,
    programs_of_classes,
    share,
    share_of_classes,
)
from tests.planner.search.test_avoid import with_links


def program(gathers: float, kind: str = "fsdp", generation: str = "fast") -> Program:
    """One that waits for so much of a second of gathers."""
    return Program(
        "a", "h100:1x8", (), tuple(kind.split()), generation, "fsdp 8", 1.0, {"gathers": 1.0}, {"gathers": gathers}
    )


def test_a_share_is_the_median_of_its_class_and_generation():
    rows = [program(0.1), program(0.3), program(0.2), program(0.9, "context"), program(0.8, generation="slow")]
    assert share("gathers", "fsdp", "fast", rows) == 0.2
    assert share("gathers", "fsdp", "slow", rows) == 0.8
    assert share("gathers", "fsdp", "ampere", rows) == 0.2, "of the nearest generation that was compiled"
    assert share("gathers", "context", "slow", rows) == 0.9
    assert share("gathers", None, "fast", rows) == pytest.approx(0.25)


def test_what_stands_for_a_generation_waits_no_less_than_its_own_programs_of_weights_alone():
    """Else a layout would look fast because it was not compiled."""
    rows = [program(0.1, "replicas"), program(0.6, "tensor"), program(0.1), program(0.3, generation="ampere")]
    assert share("gathers", "replicas", "ampere", rows) == 0.3
    assert programs_of_classes("gathers", ("replicas",), "ampere", rows) == rows[3:]
    assert share("gathers", "tensor", "ampere", rows) == 0.6
    assert share("gathers", "replicas", "fast", rows) == share("gathers", "replicas", "slow", rows) == 0.1
    compiled = [*rows, program(0.2, "replicas", "ampere")]
    assert share("gathers", "replicas", "ampere", compiled) == 0.2, "a program of its own is evidence"


def test_a_fast_network_waits_no_more_than_a_slow_one():
    rows = [program(0.5, "context"), program(0.2, "context", "slow"), program(0.1), program(0.3, generation="slow")]
    assert share("gathers", "context", "fast", rows) == share("gathers", "context", "slow", rows) == 0.5
    assert programs_of_classes("gathers", ("context",), "slow", rows) == rows[:1]
    assert (share("gathers", "fsdp", "fast", rows), share("gathers", "fsdp", "slow", rows)) == (0.1, 0.3)
    network = lambda speed: with_links(parse_cluster("h100:4x8"), network=speed / 50)
    assert [generation_of(network(speed)) for speed in (24.9, 25.1)] == ["slow", "fast"]
    for own in LAYOUTS:
        slow, fast = (exposed(own, network(speed)) for speed in (24.9, 25.1))
        assert all(a <= b for a, b in zip(fast, slow, strict=True)), own


def test_of_several_classes_programs_with_just_these_count_or_the_largest_share():
    rows = [program(0.1, "copies context"), program(0.3, "copies"), program(0.5, "context"), program(0.9, "tensor")]
    assert share_of_classes("gathers", ("copies", "context"), "fast", rows) == 0.1
    assert share_of_classes("gathers", ("copies", "context"), "slow", rows) == 0.5, "not of another generation"
    assert share_of_classes("gathers", ("copies", "tensor"), "fast", rows) == 0.9
    assert share_of_classes("gathers", ("context",), "fast", rows) == 0.5


def test_the_programs_behind_a_share_are_those_of_its_median():
    rows = [program(0.1, "copies context"), program(0.3, "copies"), program(0.5, "context"), program(0.7, "context")]
    assert programs_of_classes("gathers", ("copies", "context"), "fast", rows) == rows[:1]
    assert programs_of_classes("gathers", ("copies", "tensor"), "fast", [*rows, program(0.6, "tensor")]) == [
        program(0.6, "tensor")
    ]
    assert programs_of_classes("gathers", ("context",), "fast", rows) == rows[2:]


LAYOUTS = [
    Layout(fsdp=8, zero=3),
    Layout(replica=2, fsdp=8, zero=3),
    Layout(fsdp=8, tensor=2, zero=3),
    Layout(fsdp=8, context=2, zero=3),
    Layout(fsdp=8, expert=2, zero=3),
    *(Layout(fsdp=8, context=2, tensor=tensor, zero=3, offload_fraction=0.5) for tensor in (1, 2)),
    Layout(fsdp=8, zero=3, offload_fraction=0.5),
    *(Layout(pipe=2, fsdp=8, context=context, zero=3, schedule="1f1b") for context in (1, 2)),
    Layout(pipe=2, fsdp=8, zero=3, schedule="breadth-first", virtual_stages=2),
]
"""Of every class."""
