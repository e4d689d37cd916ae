"""Findings of several processes become one report."""

from __future__ import annotations

from jaxpar.checkup.finding import Finding, attempt, merged, worst

NAMES = ["process 0 on a", "process 1 on b", "process 2 on c"]
GOOD = Finding("disk", "ok", "fast")
SLOW = Finding("disk", "warn", "slow")
FULL = Finding("disk", "fail", "full")
DEVICES = Finding("devices", "ok", "8")


def test_the_worst_of_findings():
    assert worst([]) == worst([GOOD]) == "ok"
    assert worst([GOOD, FULL, SLOW]) == "fail"


def test_what_all_found_well_is_reported_once():
    assert merged([[GOOD, DEVICES]] * 3, NAMES) == [GOOD, DEVICES]


def test_what_one_process_found_worse_is_reported_with_its_name():
    found = merged([[GOOD, DEVICES], [FULL, DEVICES], [GOOD, DEVICES]], NAMES)
    assert [(finding.found, finding.where) for finding in found] == [("fast", ""), ("full", NAMES[1]), ("8", "")]


def test_what_all_found_wrong_is_reported_once_and_without_a_name():
    assert merged([[FULL, DEVICES]] * 3, NAMES) == [FULL, DEVICES]


def test_what_only_process_0_found_wrong_has_its_name():
    found = merged([[SLOW], [GOOD], [GOOD]], NAMES)
    assert [(finding.found, finding.where) for finding in found] == [("slow", NAMES[0])]


def test_a_check_that_only_another_process_made_is_reported():
    found = merged([[DEVICES], [DEVICES, FULL], [DEVICES]], NAMES)
    assert [(finding.found, finding.where) for finding in found] == [("8", ""), ("full", NAMES[1])]


def test_an_error_inside_a_check_is_a_finding():
    def broken() -> list[Finding]:
        raise OSError("gone")

    [found] = attempt("disk", broken)
    assert (found.check, found.status, found.found) == ("disk", "fail", "OSError: gone")
