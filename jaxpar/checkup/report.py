"""Prints findings on the screen, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.checkup.finding import Finding, worst
from jaxpar.config.strict_json import json_text
from jaxpar.pages.units import plural, seconds

WORDS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("WRONG", "bold red")}
PLAIN_WIDTH = 110


def to_json(findings: Sequence[Finding]) -> str:
    """`{"status": ..., "findings": [...]}`."""
    return json_text({"status": worst(findings), "findings": [asdict(finding) for finding in findings]}, indent=1)


def show(findings: Sequence[Finding], took: float, console: Console | None = None) -> None:
    """Print a line per finding, then how to fix the problems."""
    if console is None:
        console = Console(markup=False) if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, markup=False)
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        word, style = WORDS[finding.status]
        text = f"{finding.where}: {finding.found}" if finding.where else finding.found
        table.add_row(Text(word, style), Text(finding.check), Text(text))
    console.print(table)
    mends = [finding for finding in findings if finding.mend]
    if mends:
        console.print(Text("\nTo fix", "bold"))
        for finding in mends:
            console.print(Text(f"  {finding.check}: {finding.mend}", WORDS[finding.status][1]), soft_wrap=True)
    console.print(Text(f"\n{_verdict(findings)} ({seconds(took)})", "bold"), soft_wrap=True)


def _verdict(findings: Sequence[Finding]) -> str:
    wrong = sum(finding.status == "fail" for finding in findings)
    look = sum(finding.status == "warn" for finding in findings)
    if wrong:
        return f"{wrong} of {len(findings)} checks found something wrong"
    return "All checks passed" if not look else f"No errors, {plural(look, 'warning')}"
