"""The shares of messages that are waited for, of rows of a table of programs."""

from __future__ import annotations

import pytest

from jaxpar.planner.step_time.exposed import Program, share, share_of_classes


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


def test_of_several_classes_programs_with_just_these_count_or_the_largest_share():
    rows = [program(0.1, "copies context"), program(0.3, "copies"), program(0.5, "context"), program(0.9, "tensor")]
    assert share_of_classes("gathers", ("copies", "context"), "fast", rows) == 0.1
    assert share_of_classes("gathers", ("copies", "context"), "slow", rows) == 0.5, "not of another generation"
    assert share_of_classes("gathers", ("copies", "tensor"), "fast", rows) == 0.9
    assert share_of_classes("gathers", ("context",), "fast", rows) == 0.5
