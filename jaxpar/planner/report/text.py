"""Prints plans: the table, the time and memory of the best one by part, and the alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console

from jaxpar.compiler.report.screen import print_lines, table
from jaxpar.config.spelling import spaced
from jaxpar.hardware.cluster import HOST_MEMORY
from jaxpar.layout.choices.pipeline import schedule_of
from jaxpar.pages.units import plural, size
from jaxpar.pipeline.timing.in_flight import lockstep_peaks
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Effort, Planned


def print_plans(plans: Sequence[Planned], effort: Effort, console: Console, alike: Sequence[Planned]) -> None:
    """Print the result of a search; `alike` has the same plans with times that are all predicted, or all compiled."""
    best, lines = plans[0], partial(print_lines, console)
    data = best.config.data
    rows = f"{plural(data.batch_size, 'row')} of {plural(data.sequence_length, 'token')}"
    lines(f"{best.config.run.name} on {best.cluster.name}: {rows}", style="bold")
    lines(*best.cluster.describe().splitlines())
    lines(
        f"{plural(effort.groups, 'mesh')}, {plural(effort.simulated, 'schedule')} simulated, "
        f"{plural(effort.timed, 'layout')} timed, {plural(effort.too_large, 'choice')} ruled out by memory",
        style="dim",
    )
    cells = [
        words.columns(one.candidate, index, data.batch_size, one.spread).values() for index, one in enumerate(plans, 1)
    ]
    heads = words.columns(best.candidate, 1, data.batch_size, best.spread)
    made = table(heads, words.LEFT)
    for row in cells:
        made.add_row(*row)
    console.print(made)
    lines(*words.meanings(plans), style="dim")
    lines(*filter(None, [words.without_evidence(plans)]))
    if best.spread is not None:
        lines(words.certainty(plans, best.spread))
    if best.candidate.memory.host:
        lines(host_words(best))
    lines(*(f"Experts: {line}" for line in words.exchanges(best.plan, best.config.parallel)))
    lines(f"Largest loss: {words.limit(best)}")
    candidate = best.candidate
    lines(*words.parts(candidate.time.breakdown, candidate.seconds), title="Where the time goes")
    lines(*memory(best), title="Memory of a GPU")
    if len(plans) > 1:
        first, *others = (one.candidate for one in alike)
        differences = (f"{words.axes(one.layout)}: {words.difference(first, one)}" for one in others)
        lines(*differences, title="Nearest alternatives")


def host_words(best: Planned) -> str:
    """How much host memory a layout takes, the limit, and where the limit is set."""
    asked, cluster = best.config.memory.host_limit, best.cluster
    limit, source = cluster.host_limit(asked), "memory.host_limit"
    if asked is None:
        whole = size(limit * cluster.gpus_per_host)
        source = f"{whole} a host: host_memory in the cluster's YAML, {size(HOST_MEMORY)} by default"
    return f"On the host: {size(best.candidate.memory.host)} of the {size(limit)} that each GPU may use ({source})"


def memory(best: Planned) -> list[str]:
    """The memory of one layout by part."""
    parts = {name: amount for name, amount in best.candidate.memory._asdict().items() if amount}
    pinned = lambda name: f"  ({words.PINNED})" if name == "host" else ""
    lines = [f"{spaced(name):<18}{size(amount):>10}{pinned(name)}" for name, amount in parts.items()]
    if best.candidate.layout.pipe > 1:
        filled = ", ".join(str(peak.in_flight) for peak in lockstep_peaks(schedule_of(best.plan)))
        lines.append(
            "the same on every pipe rank, since all run one program; (microbatch, chunk) pairs in flight by rank: "
            f"{filled}"
        )
    return lines
