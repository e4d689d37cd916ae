"""Findings of checks, of one process and of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["ok", "warn", "fail"]
SEVERITY: tuple[Status, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str
    """The check's name, such as `packages` or `disk`."""
    status: Status
    found: str
    mend: str = ""
    """Instruction to fix it; empty if nothing needs to be done."""
    where: str = ""
    """The process and host that it is about; empty for all."""


def attempt(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of `look`; an exception in it becomes a finding."""
    try:
        return list(look())
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return [Finding(check, "fail", f"{type(error).__name__}: {first}", "the check itself failed with this error")]


def worst(findings: Iterable[Finding]) -> Status:
    """The worst status among them."""
    return SEVERITY[max((SEVERITY.index(finding.status) for finding in findings), default=0)]


def merged(of_each: Sequence[Sequence[Finding]], names: Sequence[str]) -> list[Finding]:
    """The findings of all processes as one list: those of process 0, then worse ones of other processes.

    Args:
        of_each: the findings of each process; all make the same checks in the same order.
        names: names of the processes.
    """
    if len(of_each) == 1:
        return list(of_each[0])
    levels = [_levels(findings) for findings in of_each]
    order = list(dict.fromkeys(check for level in levels for check in level))
    merged_findings = []
    for check in order:
        here = [level.get(check, "ok") for level in levels]
        for process, findings in enumerate(of_each):
            # Other processes are listed where they found something worse than process 0.
            if process and SEVERITY.index(here[process]) <= SEVERITY.index(here[0]):
                continue
            alike = process == 0 and len(set(here)) == 1
            where = "" if alike or here[process] == "ok" else names[process]
            merged_findings += [replace(finding, where=where) for finding in findings if finding.check == check]
    return merged_findings


def _levels(findings: Sequence[Finding]) -> dict[str, Status]:
    """The worst status of each check."""
    checks = dict.fromkeys(finding.check for finding in findings)
    return {check: worst(finding for finding in findings if finding.check == check) for check in checks}
