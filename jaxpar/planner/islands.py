"""Islands in words: those of a plan, and those that a cluster with a slow link suggests beside data parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rich.console import Console

from jaxpar.config import Config, UserError
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.hardware.cluster import Cluster
from jaxpar.layout.checks.validate import validate
from jaxpar.planner.report import words
from jaxpar.planner.report.screen import print_lines, table
from jaxpar.planner.search.candidate import Candidate, Planned
from jaxpar.planner.search.islands import IslandSearch, search_of
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import divisors
from jaxpar.planner.step_time.model import StepTime
from jaxpar.units import percent, plural, seconds, size

EVERY = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Steps between two exchanges that are tried."""
DELAYS, WIRES = (0, 1), (None, "int8", "int4")
MOST_WASTED = 0.05
"""Share of the step that exchanges may take."""


@dataclass(frozen=True)
class Offer:
    """The fewest steps between exchanges that take at most `MOST_WASTED` of the step, with one delay and one wire."""

    exchange: IslandsConfig
    time: StepTime
    wasted: float
    """Share of the step."""
    sent_bytes: float
    """Bytes that a GPU sends to other islands in a step, on average."""


@dataclass(frozen=True)
class Offers:
    """Islands on a cluster of groups with a slower link between them, and data parallelism over that link."""

    across: Candidate | None
    """The best layout without islands and without a pipeline; None where there is none."""
    island: Candidate | None
    """The layout of each island; None where there is none."""
    rows: tuple[Offer, ...] = ()
    refused: str = ""
    """Why there are no rows."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, beside the plan."""
        across = None if self.across is None else self.across.seconds
        mesh = None if self.island is None else words.axes(self.island.layout)
        rows = [
            {
                "parallel.islands": self.island.layout.islands if self.island else None,
                **{f"islands.{name}": getattr(row.exchange, name) for name in ("every", "fragments", "delay", "wire")},
                "step_time_s": row.time.seconds,
                "wasted": row.wasted,
                "sent_bytes": row.sent_bytes,
            }
            for row in self.rows
        ]
        return {"data_parallel_step_time_s": across, "mesh": mesh, "rows": rows, "refused": self.refused or None}


def has_slow_link(config: Config, cluster: Cluster) -> bool:
    """Whether the groups of a cluster are connected by another link than their hosts, and the run has no islands."""
    apart = len(cluster.groups) > 1 and cluster.written_between is not None
    return apart and cluster.bandwidth_file is None and config.islands.every is None


def offers(
    config: Config, cluster: Cluster, fixed: Mapping[str, str], avoided: frozenset[str],
    hardware: HardwareModel | None = None,
) -> Offers:  # fmt: skip
    """Islands for the groups of a cluster: they learn something else than the run without, and so are no plans."""
    across = None
    if fixed.get("pipe", "1") == "1":
        across = _best(search_of(config, cluster, {**fixed, "pipe": "1"}, avoided, hardware))
    usable = [every for every in EVERY if every <= config.run.steps]
    asked = replace(
        config, parallel=replace(config.parallel, islands=len(cluster.groups)),
        islands=replace(config.islands, every=usable[-1]),
    )  # fmt: skip
    try:
        validate(asked)
        search = search_of(asked, cluster, fixed, avoided, hardware)
        island = search.best(1)[0].candidate
    except UserError as error:
        return Offers(across, None, refused=str(error))
    assert isinstance(search, IslandSearch), "it is of islands"
    rows = tuple(filter(None, (_least(search, island, *one) for one in product(DELAYS, WIRES))))
    why = "" if rows else f"with each of {usable}, exchanges take more than {percent(MOST_WASTED, digits=0)} of the step"
    return Offers(across, island, rows, why)


def print_offers(found: Offers, console: Console) -> None:
    """Print the islands that a cluster suggests, beside data parallelism."""
    heads = "", "mesh", "every", "fragments", "delay", "wire", "step", "wasted", "tokens/s/GPU", "sent", "memory"
    made = table(heads, ("", "mesh", "wire"), "Across the slow link")
    if (one := found.across) is not None:
        cells = words.axes(one.layout), *"----", *_speed(one.time, None), "-", size(one.memory.device)
        made.add_row("data parallelism", *cells)
    for row in found.rows:
        assert found.island is not None, "rows are of its layout"
        own = row.exchange
        made.add_row(
            f"{found.island.layout.islands} islands", words.axes(replace(found.island.layout, islands=1)),
            *map(str, (own.every, own.fragments, own.delay)), own.wire or "-", *_speed(row.time, row.wasted),
            size(row.sent_bytes), size(found.island.memory.device),
        )  # fmt: skip
    if made.row_count:
        console.print(made)
    if found.refused:
        print_lines(console, f"No islands: {found.refused}")
        return
    print_lines(
        console,
        "Islands are another algorithm, with another loss, and so never the first plan (docs/islands.md). Each row has "
        f"the least islands.every that wastes at most {percent(MOST_WASTED, digits=0)} of the step; sent: of a GPU to "
        "other islands in a step, on average.",
        style="dim",
    )


def _speed(time: StepTime, wasted: float | None) -> tuple[str, str, str]:
    return seconds(time.seconds), "-" if wasted is None else percent(wasted), f"{time.tokens_per_s_per_gpu:,.0f}"


def of_plan(planned: Planned, search: Search) -> list[str]:
    """The exchanges of a plan with islands in words; nothing for others."""
    if not isinstance(search, IslandSearch):
        return []
    exchange, layout = search.timer.exchange, replace(planned.candidate.layout, islands=1)
    weights, alone = search.timer.weights(layout), search.timer.alone(layout)
    message, total = exchange.message(weights), exchange.joined(alone, weights)
    exposed = exchange.share * max(0.0, message - exchange.hidden_by(alone))
    often = f"in 1 of {round(1 / exchange.share)} steps"
    way = "beside forward and backward" if exchange.config.delay else "waited for"
    lines = [f"{plural(exchange.islands, 'island')} of {plural(layout.devices, 'GPU')}, alike; the step is a mean"]
    if exchange.islands > 1:
        lines += [
            f"a GPU sends {size(exchange.sent_bytes(weights))} to other islands in a step on average: {often} a message "
            f"of {seconds(message)}, {way}",
            f"exposed: {percent(exposed, total.seconds)} of the step; exchanges take "
            f"{percent(1 - alone.seconds / total.seconds)} of it",
        ]
    return [*lines, "no published run with islands is behind the interval"]


def _best(search: Search) -> Candidate | None:
    try:
        return search.best(1)[0].candidate
    except UserError:
        return None


def _least(search: IslandSearch, island: Candidate, delay: int, wire: str | None) -> Offer | None:
    """The fewest steps between exchanges that waste little enough; None if all waste more."""
    layout, exchange = replace(island.layout, islands=1), search.timer.exchange
    weights, alone = search.timer.weights(layout), search.timer.alone(layout)
    for every in _periods(search.run, delay):
        fragments = max(n for n in divisors(every) if n <= search.run.model.layers) if delay else 1
        settings = replace(exchange.config, every=every, fragments=fragments, delay=delay, wire=wire)  # pyright: ignore
        own = replace(exchange, config=settings)
        time = own.joined(alone, weights)
        wasted = 1 - alone.seconds / time.seconds
        if wasted <= MOST_WASTED:
            return Offer(settings, time, wasted, own.sent_bytes(weights))
    return None


def _periods(config: Config, delay: int) -> Iterator[int]:
    """Numbers of steps between exchanges that the run could have."""
    return (every for every in EVERY if delay < every and every + delay <= config.run.steps)
