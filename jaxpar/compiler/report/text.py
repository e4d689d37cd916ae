"""The report on a terminal."""

from __future__ import annotations

from rich import box
from rich import table as rich
from rich.console import Console
from rich.text import Text

from jaxpar.compiler.report.record import Report
from jaxpar.compiler.report.tables import mesh_words, tables, verdict, waiting
from jaxpar.pages.render import Cell, Table
from jaxpar.units import seconds


def print_report(report: Report, console: Console) -> None:
    """Print whether it fits, then memory, traffic, work, and the largest buffers."""
    _print_heading(report, console)
    for title, table in tables(report).items():
        _print_table(title, table, console)
    console.print()
    console.print(Text(waiting(report), "bold"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"Note: {note}", "yellow"), soft_wrap=True)
    last = f"Compiled in {seconds(report.compile_seconds)}. Read from the program, not measured."
    console.print(Text(last, "dim"), soft_wrap=True)


def _print_heading(report: Report, console: Console) -> None:
    """Configuration, cluster, and the verdict."""
    where = f" on {report.cluster}: {report.devices} x {report.gpu}, mesh {mesh_words(report.axes)}"
    console.print(Text.assemble((report.config, "bold"), where), soft_wrap=True)
    console.print(Text(verdict(report), "bold green" if report.fits else "bold red"), soft_wrap=True)


def _print_table(title: str, shown: Table, console: Console) -> None:
    """A table; one without rows is the word none."""
    console.print()
    if not shown.rows:
        console.print(Text(f"{title}: none"))
        return
    table = rich.Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for place, head in enumerate(shown.heads):
        table.add_column(head, justify="right" if place in shown.numbers else "left", overflow="fold")
    for row in shown.rows:
        table.add_row(*(Text(cell, "red" if isinstance(cell, Cell) and cell.hot else "") for cell in row))
    console.print(table)
