"""Schedules on a terminal: one with its grid and numbers, or all side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxpar.pages.units import percent, plural, size
from jaxpar.pipeline.drawing.summary import Refused, Summary
from jaxpar.pipeline.drawing.terminal_grid import print_grid
from jaxpar.pipeline.drawing.words import number, title
from jaxpar.pipeline.schedules import SCHEDULES
from jaxpar.pipeline.timing.formulas import published_bubble
from jaxpar.pipeline.timing.simulate import TIMELINES, Mode
from jaxpar.pipeline.timing.workload import Workload

PLAIN_WIDTH = 110
"""Width where there is no terminal."""
NARROW = 104
"""Width below which the comparison leaves out makespans, which follow from the bubbles."""
LISTED = 16
"""Most ranks whose numbers are listed one by one; of more, the first and last few."""
NOTES = (
    "Bubble: time on top of the ideal, as a part of it. In flight: chunks that the fullest rank keeps from F to B (to "
    "W where the backward is split), divided by its v chunks: in microbatches of all its layers. Sent: by all ranks."
)


def console() -> Console:
    """Standard output: as wide as the terminal, or `PLAIN_WIDTH` where there is none."""
    screen = Console(highlight=False, markup=False)
    return screen if screen.is_terminal else Console(width=PLAIN_WIDTH, markup=False, highlight=False)


def print_summary(summary: Summary, mode: Mode, console: Console) -> None:
    """Name, grid in `mode`, then times in all modes, memory and traffic."""
    schedule = summary.schedule
    console.print(Text(title(schedule), "bold"))
    if schedule.name in SCHEDULES:
        console.print(Text(SCHEDULES[schedule.name].description, "dim"))
    console.print(Text(f"Drawn: {mode}. {_work(summary.workload)}", "dim"))
    console.print()
    print_grid(summary.modes[mode], console)
    console.print()
    console.print(_modes(summary))
    console.print()
    for line in _notes(summary):
        console.print(line)


def print_comparison(
    summaries_or_refusals: Mapping[str, Summary | Refused], workload: Workload, console: Console
) -> None:
    """A line for each schedule, then those that cannot be made."""
    summaries = [summary for summary in summaries_or_refusals.values() if isinstance(summary, Summary)]
    if summaries:
        schedule = summaries[0].schedule
        sizes = f"{plural(schedule.ranks, 'rank')}, {plural(schedule.microbatches, 'microbatch')}"
        console.print(Text.assemble((sizes, "bold"), (f"   {_work(workload)}", "dim")))
        console.print()
        console.print(_comparison(summaries, workload, narrow=console.width < NARROW))
        console.print()
        console.print(Text(NOTES, "dim"))
    for refused in (entry for entry in summaries_or_refusals.values() if isinstance(entry, Refused)):
        console.print(Text.assemble(("cannot be made: ", "yellow"), refused.reason))


def _work(workload: Workload) -> str:
    message = f"A rank's layers: F {number(workload.forward)}, B {number(workload.backward)} (W "
    message += f"{number(workload.weight)}); head {number(workload.head)}, transfer {number(workload.transfer)}"
    message += f", in {workload.unit}" if workload.unit else ""
    if workload.stage_times is not None:
        message += f"; times {', '.join(map(number, workload.stage_times))}"
    return message + "."


def _modes(summary: Summary) -> Table:
    table = _table("", "makespan", "ideal", "bubble", "")
    table.add_column("peak in flight, by rank")
    sized = bool(summary.workload.stash or summary.workload.kept)
    if sized:
        table.add_column("peak bytes, by rank")
    for mode, simulation in summary.modes.items():
        bubble = number(simulation.bubble), percent(simulation.bubble_fraction)
        times = number(simulation.makespan), number(simulation.ideal), *bubble
        memory = [_listed([size(count) for count in simulation.peak_bytes])] if sized else []
        table.add_row(mode, *times, _listed([str(count) for count in simulation.peak_in_flight]), *memory)
    return table


def _notes(summary: Summary) -> Iterator[Text]:
    published = summary.published
    sent = f", {size(sum(published.bytes_sent))}" if summary.workload.sent else ""
    each = _listed([str(count) for count in published.transfers_of])
    yield Text(f"Sent to other ranks: {published.transfers} activations and gradients{sent}; by rank: {each}.")
    end = "W" if summary.schedule.splits_backward else "B"
    yield Text(f"In flight are chunks, from F to {end}. Lockstep is how one program for all ranks runs it.", "dim")
    bubble = published_bubble(summary.schedule, summary.workload.durations(summary.schedule))
    if bubble is not None:
        most = "" if bubble.exact else "at most "
        yield Text(f"The published bubble is {most}{number(bubble.time)}: {bubble.source}.", "dim")


def _comparison(summaries: Sequence[Summary], workload: Workload, *, narrow: bool) -> Table:
    heads = ["bubble\nasync", "\nlockstep", "\nbranching"]
    heads += [] if narrow else ["makespan\nasync", "\nlockstep"]
    table = _table("\nschedule", "\nv", *heads, "in flight\nasync", "\nlockstep", "\nsent")
    least = {mode: min(summary.modes[mode].bubble_fraction for summary in summaries) for mode in TIMELINES}
    for summary in summaries:
        modes = summary.published, summary.lockstep
        bubbles = [
            Text(percent(simulation.bubble_fraction), "bold green" if simulation.bubble_fraction == least[mode] else "")
            for mode, simulation in summary.modes.items()
        ]
        virtual = summary.schedule.virtual_stages
        makespans = [] if narrow else [number(simulation.makespan) for simulation in modes]
        memory = [number(max(simulation.peak_in_flight) / virtual, 1) for simulation in modes]
        if workload.stash or workload.kept:
            memory = [size(max(simulation.peak_bytes)) for simulation in modes]
        sent = size(sum(modes[0].bytes_sent)) if workload.sent else str(modes[0].transfers)
        table.add_row(summary.schedule.name, str(virtual), *bubbles, *makespans, *memory, sent)
    return table


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", no_wrap=True)
    return table


def _listed(values: Sequence[str]) -> str:
    if len(values) <= LISTED:
        return "  ".join(values)
    return "  ".join([*values[:4], "...", *values[-4:]])
