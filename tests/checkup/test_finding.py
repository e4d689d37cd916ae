"""Findings of several processes become one report."""

import pytest

from jaxpar.checkup.finding import Finding, attempt, merged, worst

NAMES = ["process 0 on a", "process 1 on b", "process 2 on c"]
GOOD = Finding("disk", "ok", "fast")
SLOW = Finding("disk", "warn", "slow")
FULL = Finding("disk", "fail", "full")
DEVICES = Finding("devices", "ok", "8")


def test_the_worst_of_findings():
    assert worst([]) == worst([GOOD]) == "ok"
    assert worst([GOOD, FULL, SLOW]) == "fail"


@pytest.mark.parametrize(
    ("by_process", "reported"),
    [
        ([[GOOD, DEVICES]] * 3, [("fast", ""), ("8", "")]),
        ([[GOOD, DEVICES], [FULL, DEVICES], [GOOD, DEVICES]], [("fast", ""), ("full", NAMES[1]), ("8", "")]),
        ([[FULL, DEVICES]] * 3, [("full", ""), ("8", "")]),
        ([[SLOW], [GOOD], [GOOD]], [("slow", NAMES[0])]),
        ([[DEVICES], [DEVICES, FULL], [DEVICES]], [("8", ""), ("full", NAMES[1])]),
    ],
    ids=["all well", "one process worse", "all wrong", "only process 0 wrong", "a check of another process"],
)
def test_what_processes_found_is_one_report(by_process: list[list[Finding]], reported: list[tuple[str, str]]):
    assert [(finding.found, finding.where) for finding in merged(by_process, NAMES)] == reported


def test_an_error_inside_a_check_is_a_finding():
    def broken() -> list[Finding]:
        raise OSError("gone")

    [found] = attempt("disk", broken)
    assert (found.check, found.status, found.found) == ("disk", "fail", "OSError: gone")
