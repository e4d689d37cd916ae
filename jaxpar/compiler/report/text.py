"""The report on a terminal."""

from __future__ import annotations

from rich import box
from rich import table as rich
from rich.console import Console
from rich.text import Text

from jaxpar.compiler.report.record import Report
from jaxpar.compiler.report.tables import Titled, differences, memory_table, mesh_words, tables, verdict, waiting
from jaxpar.pages.render import Cell
from jaxpar.units import seconds

COPIES = 10
"""Copies on the device that the screen lists."""


def print_report(report: Report, console: Console) -> None:
    """Print whether it fits, then memory, traffic, work, and the largest buffers."""
    print_verdict(report, console)
    for titled in (memory_table(report), *tables(report, COPIES)):
        print_table(titled, console)
    console.print()
    console.print(Text(waiting(report), "bold"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
    console.print(
        Text(f"Compiled in {seconds(report.compile_seconds)}. Read from the program, not measured.", "dim"),
        soft_wrap=True,
    )


def print_difference(before: Report, after: Report, console: Console) -> None:
    """Print both verdicts, and what changes from one configuration to the other."""
    for report in (before, after):
        print_verdict(report, console)
    for titled in differences(before, after):
        print_table(titled, console, "the same")


def print_verdict(report: Report, console: Console) -> None:
    """Configuration, cluster, and whether it fits."""
    about = f" on {report.cluster}: {report.devices} x {report.gpu}, mesh {mesh_words(report)}"
    console.print(Text.assemble((report.config, "bold"), about), soft_wrap=True)
    console.print(Text(verdict(report), "bold green" if report.fits else "bold red"), soft_wrap=True)


def print_table(titled: Titled, console: Console, nothing: str = "none") -> None:
    """A table of a report; one without rows is the word `nothing`."""
    title, shown = titled
    console.print()
    if not shown.rows:
        console.print(Text(f"{title}: {nothing}"))
        return
    table = rich.Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for place, head in enumerate(shown.heads):
        table.add_column(head, justify="right" if place in shown.numbers else "left", overflow="fold")
    for row in shown.rows:
        table.add_row(*(Text(cell, "red" if isinstance(cell, Cell) and cell.hot else "") for cell in row))
    console.print(table)
