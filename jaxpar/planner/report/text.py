"""Prints plans: the table, the time and memory of the best one by part, and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from jaxpar.config.spelling import printable, spaced
from jaxpar.hardware.cluster import HOST_MEMORY
from jaxpar.layout.choices.pipeline import schedule_of
from jaxpar.pipeline.timing.in_flight import lockstep_peaks
from jaxpar.planner.report import words
from jaxpar.planner.report.columns import NUMBERS, columns
from jaxpar.planner.search.candidate import Effort, Planned
from jaxpar.units import percent, plural, seconds, size


def print_plans(plans: Sequence[Planned], effort: Effort, console: Console) -> None:
    """Print the result of a search."""
    best = plans[0]
    data = best.config.data
    console.print(
        f"{printable(best.config.run.name)} on {printable(best.cluster.name)}: {plural(data.batch_size, 'row')} of "
        f"{plural(data.sequence_length, 'token')}",
        style="bold", highlight=False, soft_wrap=True,
    )  # fmt: skip
    console.print(best.cluster.describe(), highlight=False, soft_wrap=True)
    console.print(
        f"{plural(effort.groups, 'mesh')}, {plural(effort.simulated, 'schedule')} simulated, "
        f"{plural(effort.timed, 'layout')} timed, {plural(effort.too_large, 'choice')} ruled out by memory",
        highlight=False, soft_wrap=True, style="dim",
    )  # fmt: skip
    console.print(plan_table(plans))
    for line in words.meanings(plans):
        console.print(line, highlight=False, soft_wrap=True, style="dim")
    if marked := words.without_evidence(plans):
        console.print(marked, highlight=False, soft_wrap=True)
    if best.spread is not None:
        console.print(words.certainty(plans, best.spread), highlight=False, soft_wrap=True)
    if best.candidate.memory.host:
        console.print(host_words(best), highlight=False, soft_wrap=True)
    for line in words.exchanges(best.plan, best.config.parallel):
        console.print(f"Experts: {line}", highlight=False, soft_wrap=True)
    print_steps(best, console)
    print_best(best, console)
    if len(plans) > 1:
        console.print("Nearest alternatives", style="bold")
        for other in plans[1:]:
            text = words.difference(best.candidate, other.candidate)
            console.print(f"  {words.axes(other.candidate.layout)}: {text}", highlight=False, soft_wrap=True)


def host_words(best: Planned) -> str:
    """How much host memory a layout takes, the limit, and where the limit is set."""
    own, cluster = best.config.memory.host_limit, best.cluster
    limit, source = cluster.host_limit(own), "memory.host_limit"
    if own is None:
        whole = size(limit * cluster.gpus_per_host)
        source = f"{whole} a host: host_memory in the cluster's YAML, {size(HOST_MEMORY)} by default"
    return f"On the host: {size(best.candidate.memory.host)} of the {size(limit)} that each GPU may use ({source})"


def plan_table(plans: Sequence[Planned]) -> Table:
    """The plans as a table, best first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    rows = [columns(one.candidate, place, one.config.data.batch_size, one.spread) for place, one in enumerate(plans, 1)]
    for name in rows[0]:
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for row in rows:
        table.add_row(*row.values())
    return table


def print_steps(best: Planned, console: Console) -> None:
    """Print the three steps of the Ultra-Scale Playbook (Hugging Face, 2025), with the decision in each."""
    layout, memory, config = best.candidate.layout, best.candidate.memory, best.config
    shards = layout.fsdp * layout.expert * layout.context
    split = [
        *([f"tensor {layout.tensor}"] if layout.tensor > 1 else []),
        *([f"pipe {layout.pipe}"] if layout.pipe > 1 else []),
        *([f"expert {layout.expert}"] if layout.expert > 1 else []),
        *([f"context {layout.context}"] if layout.context > 1 else []),
        *([f"ZeRO-{layout.zero} over {shards} ranks"] if layout.zero and shards > 1 else []),
    ]
    rows = config.data.batch_size
    console.print("Three steps", style="bold")
    for place, (what, text) in enumerate(
        (
            (
                "Fit the model",
                f"{', '.join(split) or 'one GPU holds it'}; remat {words.remat(layout)}"
                f"{', on the host: ' + words.host(layout) if words.host(layout) != '-' else ''}: "
                f"{size(memory.device)} of {size(best.usable)}",
            ),
            (
                "Reach the batch",
                f"{plural(layout.data, 'data rank')} x {plural(layout.microbatch, 'row')} x "
                f"{plural(best.plan.microbatches, 'microbatch')} = "
                f"{plural(rows, 'row')} ({rows * config.data.sequence_length:,} tokens)",
            ),
            (
                "Raise the throughput",
                f"{words.schedule(layout) if layout.pipe > 1 else 'no pipeline'}; largest loss: {words.limit(best)}",
            ),
        ),
        1,
    ):
        console.print(f"  {place}. {what}: {text}", highlight=False, soft_wrap=True)


def print_parts(breakdown: Mapping[str, float], step: float, console: Console) -> None:
    """Print the seconds of the parts of a step, the longest first; a millionth of it is what sums round to."""
    for name, spent in sorted(breakdown.items(), key=lambda item: -item[1]):
        if spent > 1e-6 * step:
            meaning = words.MEANINGS.get(name, printable(name))
            console.print(
                f"  {printable(name):<14}{seconds(spent):>9} {percent(spent, step):>6}  {meaning}",
                highlight=False,
                soft_wrap=True,
            )


def print_best(best: Planned, console: Console) -> None:
    """Print the time and the memory of one layout by part."""
    found = best.candidate
    console.print("Where the time goes", style="bold")
    print_parts(found.time.breakdown, found.seconds, console)
    console.print("Memory of a GPU", style="bold")
    for name, amount in found.memory._asdict().items():
        if amount:
            console.print(
                f"  {spaced(name):<18}{size(amount):>10}{'  (pinned, on the host)' if name == 'host' else ''}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
    if found.layout.pipe > 1:
        filled = [str(peak.in_flight) for peak in lockstep_peaks(schedule_of(best.plan))]
        console.print(
            f"  the same on every pipe rank, since all run one program; (microbatch, chunk) pairs in flight by rank: "
            f"{', '.join(filled)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
