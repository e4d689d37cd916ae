"""Islands in words: those of a plan, and those that a cluster with a slow link suggests beside data parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from rich.console import Console

from jaxpar.compiler.report.screen import print_lines, table
from jaxpar.config import UserError
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.hardware.sources import chosen
from jaxpar.layout.checks.validate import validate
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.pages.units import percent, plural, seconds, size
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.planner.search.islands import IslandSearch, search_of
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import divisors
from jaxpar.planner.step_time.model import StepTime

EVERY = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Steps between two exchanges that are tried."""
DELAYS, WIRES = (0, 1), (None, "int8", "int4")
MOST_WASTED: Annotated[float, chosen("a limit of what is offered")] = 0.05
"""Share of the step that exchanges may take."""


@dataclass(frozen=True)
class Offer:
    """The fewest steps between exchanges that take at most `MOST_WASTED` of the step, with one delay and one wire."""

    candidate: Candidate
    exchange: IslandsConfig
    wasted: float
    """Share of the step."""
    sent_bytes: float
    """Bytes that a GPU sends to other islands in a step, on average."""

    def to_dict(self) -> dict[str, object]:
        """The offer as JSON values."""
        asked = {name: getattr(self.exchange, name) for name in ("every", "fragments", "delay", "wire")}
        return {
            "mesh": words.axes(self.candidate.layout),
            **asked,
            "step_time_s": self.candidate.seconds,
            "peak_bytes": self.candidate.memory.device,
            "wasted": self.wasted,
            "sent_bytes": self.sent_bytes,
        }


@dataclass(frozen=True)
class Offers:
    """Islands on a cluster of groups with a slower link between them, and data parallelism over that link."""

    across: Candidate | None
    """The best layout without islands and without a pipeline; None where there is none."""
    rows: tuple[Offer, ...]
    refused: str
    """The reason why there are no rows."""

    def to_dict(self) -> dict[str, object]:
        """The offers as JSON values, stored beside the plan."""
        across = None if self.across is None else self.across.seconds
        rows = [row.to_dict() for row in self.rows]
        return {"data_parallel_step_time_s": across, "rows": rows, "refused": self.refused or None}


def has_slow_link(search: Search) -> bool:
    """Whether the groups of a cluster are connected by another link than their hosts, and the run has no islands."""
    cluster = search.cluster
    apart = len(cluster.groups) > 1 and cluster.written_between is not None
    return apart and cluster.bandwidth_file is None and search.space.config.islands.every is None


def offers(without: Search, factor: float = 1.0) -> Offers:
    """Islands for the groups of a cluster: they learn something else than the run without, and so are no plans.

    Args:
        without: the search of the run without islands.
        factor: measured over predicted seconds.
    """
    space, across, rows, reasons = without.space, None, list[Offer](), list[str]()
    if space.fixed.get("pipe", "1") == "1":
        across = Search(replace(space, fixed={**space.fixed, "pipe": "1"}), without.hardware).first()
    for delay in DELAYS:
        try:
            rows += _with_delay(without, delay, factor)
        except UserError as error:
            reasons.append(str(error))
    most = f"exchanges take more than {percent(MOST_WASTED, digits=0)} of the step, however rare"
    refused = "" if rows else [*reasons, most][0]
    return Offers(across and across.candidate.slower(factor), tuple(rows), refused)


def print_offers(islands: Offers, console: Console) -> None:
    """Print the islands that a cluster suggests, beside data parallelism."""
    heads = "", "mesh", "every", "fragments", "delay", "wire", "step", "wasted", "tokens/s/GPU", "sent", "memory"
    made = table(heads, ("", "mesh", "wire"), "Across the slow link")
    if (one := islands.across) is not None:
        cells = words.axes(one.layout), *"----", *_speed(one.time), "-", size(one.memory.device)
        made.add_row("data parallelism", *cells)
    for row in islands.rows:
        one, asked = row.candidate, row.exchange
        made.add_row(
            plural(one.layout.islands, "island"), words.axes(replace(one.layout, islands=1)),
            *map(str, (asked.every, asked.fragments, asked.delay)), asked.wire or "-", *_speed(one.time, row.wasted),
            size(row.sent_bytes), size(one.memory.device),
        )  # fmt: skip
    if made.row_count:
        console.print(made)
    if islands.refused:
        print_lines(console, f"No islands: {islands.refused}")
        return
    print_lines(
        console,
        "Islands are another algorithm, with another loss, and so never the first plan (docs/islands.md). Each row has "
        f"the least islands.every that wastes at most {percent(MOST_WASTED, digits=0)} of the step; sent: by a GPU to "
        "other islands in a step, on average.",
        style="dim",
    )


def of_plan(planned: Planned, search: Search) -> list[str]:
    """The exchanges of a plan with islands in words; nothing for others."""
    if not isinstance(search, IslandSearch):
        return []
    exchange, layout = search.timer.exchange, replace(planned.candidate.layout, islands=1)
    weights, alone = search.timer.weights(layout), search.timer.alone(layout)
    message, total = exchange.message(weights), exchange.joined(alone, weights)
    exposed = exchange.share * max(0.0, message - exchange.hidden_by(alone))
    often = "in each step" if exchange.share == 1 else f"in 1 of {round(1 / exchange.share)} steps"
    way = "beside forward and backward" if exchange.config.overlaps_step else "waited for"
    lines = [f"{plural(exchange.islands, 'island')} of {plural(layout.devices, 'GPU')}, alike; the step is a mean"]
    if exchange.islands > 1:
        lines += [
            f"a GPU sends {size(exchange.sent_bytes(weights))} to other islands in a step on average: {often} a "
            f"message of {seconds(message)}, {way}",
            f"exposed: {percent(exposed, total.seconds)} of the step; exchanges take "
            f"{percent(1 - alone.seconds / total.seconds)} of it",
        ]
    return [*lines, "no published run with islands is behind the interval"]


def _speed(time: StepTime, wasted: float | None = None) -> tuple[str, str, str]:
    return seconds(time.seconds), "-" if wasted is None else percent(wasted), f"{time.tokens_per_s_per_gpu:,.0f}"


def _with_delay(without: Search, delay: int, factor: float) -> list[Offer]:
    """The rows of one delay, of a layout that fits with any number of fragments. Raises `UserError`."""
    config, groups = without.space.config, len(without.space.cluster.groups)
    usable = [every for every in EVERY if delay < every and every + delay <= config.run.steps]
    if not usable:
        return []
    parallel = replace(config.parallel, islands=groups)
    asked = replace(
        config, parallel=parallel, islands=replace(config.islands, every=usable[-1], delay=delay, eager=False)
    )
    validate(asked)
    space = without.space
    search = search_of(asked, space.cluster, space.fixed, space.avoided, without.hardware)
    assert isinstance(search, IslandSearch), "it is of islands"
    island = search.best(1)[0]
    rows = (_least(search, island, usable, wire) for wire in WIRES)
    return [replace(row, candidate=row.candidate.slower(factor)) for row in rows if row is not None]


def _least(search: IslandSearch, island: Planned, periods: Sequence[int], wire: str | None) -> Offer | None:
    """The fewest steps between exchanges that waste little enough; None if all waste more."""
    layout, exchange = replace(island.candidate.layout, islands=1), search.timer.exchange
    weights, alone = search.timer.weights(layout), search.timer.alone(layout)
    layers = search.run.model.layers
    for every in periods:
        fragments = max(n for n in divisors(every) if n <= layers) if exchange.config.overlaps_step else 1
        tried = {"every": every, "fragments": fragments, "wire": wire}
        other = replace(exchange, config=replace(exchange.config, **tried))
        time = other.joined(alone, weights)
        wasted = 1 - alone.seconds / time.seconds
        if wasted <= MOST_WASTED:
            memory = estimate_memory(replace(island.config, islands=other.config), island.plan)
            candidate = replace(island.candidate, time=time, memory=memory)
            return Offer(candidate, other.config, wasted, other.sent_bytes(weights))
    return None
