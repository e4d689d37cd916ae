"""Tables of the fit: parameters with the runs behind them, collectives measured alone, errors by source."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from benchmarks.validation.collectives import LARGE, Measured
from benchmarks.validation.errors import Anchored
from benchmarks.validation.fit import FITTED, PRIORS, START, Behind, Fit
from benchmarks.validation.leave_out import LeftOut
from benchmarks.validation.report import Report, report
from benchmarks.validation.sizes import HEAD, by_size, cells
from jaxpar.cost.hardware_model import UNFITTED, described
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.planner.step_time.interval import ONE_PROGRAM
from jaxpar.units import MIB, percent

WIDTH = 120
"""Characters of a line of a page."""


def behind_table(rows: Behind, found: Fit) -> list[str]:
    """Rows and sources behind each fitted parameter, and where those with a prior begin."""
    lines = ["| parameter | of | rows | sources | begins at | fitted |", "|---|---|---|---|---|---|"]
    of = {"both": "all", "ampere": "A100, A800", "hopper": "H100, H800"}
    for kind, name, *_ in FITTED:
        sources = rows[kind, name]
        value, cited = PRIORS.get((kind, name), (START.get(name, 0.0), ""))
        where = ", ".join(sources) if len(sources) <= 3 else f"{len(sources)} of them"
        begins = f"{value:g}: {cited}" if cited else f"{value:g}"
        fitted = getattr(found.ampere if kind == "ampere" else found.hopper, name)
        lines.append(f"| `{name}` | {of[kind]} | {sum(sources.values())} | {where} | {begins} | {fitted:.3g} |")
    return lines


def fitted_values(found: Fit) -> str:
    """The fitted values, as `hardware_model` has them."""
    values = (
        (kind, name, getattr(found.ampere if kind == "ampere" else found.hopper, name)) for kind, name, *_ in FITTED
    )
    return ", ".join(f"{kind} {name}={value:.3g}" for kind, name, value in values)


def collectives_table(rows: Sequence[Measured]) -> list[str]:
    """All-reduces inside a host, measured and predicted, by GPU and ranks; messages above 16 MiB and smaller ones."""
    lines = ["| GPU | ranks | to 16 MiB: median | worst | above: median | worst |", "|---|---|---|---|---|---|"]
    inside = [one for one in rows if one.hosts == 1 and one.size != LARGE]
    for gpu, ranks in dict.fromkeys((one.gpu, one.ranks) for one in inside):
        own = [one for one in inside if (one.gpu, one.ranks) == (gpu, ranks)]
        small = [one.error() for one in own if one.size <= 16 * MIB]
        large = [one.error() for one in own if one.size > 16 * MIB]
        cells = [cell for part in (small, large) for cell in (percent(_middle(part)), _signed(max(part, key=abs)))]
        lines.append(f"| {gpu_named(gpu).name} | {ranks} | {' | '.join(cells)} |")
    return lines


def cited_table(rows: Sequence[Measured]) -> list[str]:
    """Each collective that a source states one number for: its bus bandwidth as a share of the line rate, beside the
    model's."""
    lines = [
        "| collective | GPUs | hosts | share of line rate: measured | model | error of seconds | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        if one.hosts == 1 and one.size != LARGE:
            continue
        line = one.network or gpu_named(one.gpu).node.bandwidth
        lines.append(
            f"| {one.collective.replace('_', '-')} | {one.ranks} {gpu_named(one.gpu).name} | {one.hosts} | "
            f"{_whole(one.bandwidth / line)} | {_whole(one.predicted() / line)} | {_signed(one.error())} | "
            f"{one.citation} |"
        )
    return lines


def _middle(errors: Sequence[float]) -> float:
    return float(np.median(np.abs(errors)))


def _signed(error: float) -> str:
    return f"{100 * error:+.1f}%"


def parameters_table(found: Fit) -> list[str]:
    """Every parameter: value on Ampere, on Hopper, unit, meaning."""
    fitted = {name for _, name, *_ in FITTED}
    lines = ["| parameter | A100, A800 | H100, H800 | unit | what it is | from |", "|---|---|---|---|---|---|"]
    for (name, ampere, unit, meaning), (_, hopper, *_) in zip(
        described(found.ampere), described(found.hopper), strict=True
    ):
        source = "fitted" if name in fitted else SOURCES[name]
        lines.append(f"| `{name}` | {ampere:.3g} | {hopper:.3g} | {unit} | {meaning} | {source} |")
    return [*lines, ONE_PROGRAM_ROW]


ONE_PROGRAM_ROW = (
    f"| `ONE_PROGRAM` | {ONE_PROGRAM:.3g} | {ONE_PROGRAM:.3g} | of messages | shares that are waited for are off by, "
    "where one compiled program alone shows them (a standard deviation, of intervals) | compiled programs, each "
    "beside the others of its class (above) |"
)

SOURCES = {
    "launch_seconds": "usual; no run in the data is limited by it",
    "node_share": "all-reduces measured alone (below)",
    "network_share": "nccl-tests between two and three hosts: 75 to 96%",
    "network_decline": "nccl-tests of reduce-scatters on 4 to 128 hosts: 90 to 65%",
    "message_seconds": "all-reduces measured alone (below)",
    "attention_native_share": "NVIDIA's table for cuDNN 9",
    "multiprocessors": "datasheet",
    "exponentials": "whitepaper",
}


def errors_table(parts: Mapping[str, Report]) -> list[str]:
    """Median and 90th percentile by source, for each way to be judged."""
    names = list(dict.fromkeys(name for part in parts.values() for name in part.sources))
    head = ["source", *(f"{part}: rows | median | p90" for part in parts)]
    lines = ["| " + " | ".join(head) + " |", "|---" * (1 + 3 * len(parts)) + "|"]
    for name in [*names, None]:
        cells = [name or "**mean over sources**"]
        for part in parts.values():
            errors = part.overall if name is None else part.sources.get(name)
            shown = errors is not None and errors.median_error is not None and errors.p90_error is not None
            cells += (
                [str(errors.rows), percent(errors.median_error), percent(errors.p90_error)]
                if shown and errors is not None and errors.median_error is not None and errors.p90_error is not None
                else ["", "", ""]
            )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def left_out_table(found: LeftOut) -> list[str]:
    """Medians of the errors by source, naive ones first."""
    lines = [
        "| source | rows | one MFU per GPU | one run measured | unseen software | p90 | bias | one run measured "
        "| source unseen | p90 | bias | one run measured |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    columns: list[list[float]] = []
    for name in sorted(found.sources):
        of = lambda judged: [one.error for one in judged if one.error is not None]
        unseen, source = of(found.generations[name]), of(found.sources[name])
        middle = lambda errors: float(np.median(np.abs(errors)))
        cells = [
            middle(found.naive[name]), middle(found.naive_anchored[name]),
            middle(unseen), _high(unseen), float(np.median(unseen)),
            middle(_errors(found.anchored[name])), middle(source), _high(source), float(np.median(source)),
            middle(_errors(found.anchored_sources[name])),
        ]  # fmt: skip
        columns.append(cells)
        lines.append(f"| {name} | {len(source)} | {' | '.join(_cells(cells))} |")
    means = [float(np.mean(column)) for column in zip(*columns, strict=True)]
    rows = sum(len(own) for own in found.sources.values())
    return [*lines, f"| **mean over sources** | {rows} | {' | '.join(_cells(means))} |"]


def _cells(values: Sequence[float]) -> list[str]:
    signed = (4, 8)
    return [f"{100 * value:+.1f}%" if place in signed else percent(value) for place, value in enumerate(values)]


def _errors(beside: Sequence[Anchored]) -> list[float]:
    return [one.error for one in beside]


def _high(errors: Sequence[float]) -> float:
    return float(np.percentile(np.abs(errors), 90))


def spread_table(found: LeftOut) -> list[str]:
    """The spread of measured around predicted times, and how many of the runs left out are inside the interval."""
    lines = [
        "| software | between systems | within a system | 80% interval | inside, left out | fewest, of a source |",
        "|---|---|---|---|---|---|",
    ]
    for name, spread, coverage in (
        ("known", found.known, found.coverage), ("unknown", found.unknown, found.coverage_unknown)
    ):  # fmt: skip
        low, high = spread.interval(1.0)
        worst = min(coverage, key=coverage.__getitem__)
        lines.append(
            f"| {name} | {percent(spread.between)} | {percent(spread.within)} | -{percent(1 - low)} to "
            f"+{percent(high - 1)} | {100 * float(np.mean(list(coverage.values()))):.0f}% | "
            f"{100 * coverage[worst]:.0f}% ({worst}) |"
        )
    return lines


def order_table(found: LeftOut) -> list[str]:
    """By source that is left out: how many of its runs are inside their interval, and how many pairs of layouts of one
    model, more than 5% apart, are predicted in the order that was measured; for known and for unknown software."""
    lines = [
        "| source | inside, known | one run measured | inside, unknown | one run measured | pairs in order, known "
        "| pairs in order, unknown |",
        "|---|---|---|---|---|---|---|",
    ]
    columns: list[list[float | None]] = []
    for name in sorted(found.sources):
        in_order = [report(judged[name]).sources[name].pairs_in_order for judged in (found.sources, found.generations)]
        beside = [fmean(one.covered for one in own[name]) for own in (found.anchored_sources, found.anchored)]
        columns.append([found.coverage[name], beside[0], found.coverage_unknown[name], beside[1], *in_order])
        lines.append(f"| {name} | {' | '.join(map(_whole, columns[-1]))} |")
    there = [[value for value in column if value is not None] for column in zip(*columns, strict=True)]
    means = [fmean(values) if values else None for values in there]
    return [*lines, f"| **mean over sources** | {' | '.join(map(_whole, means))} |"]


def _whole(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def sizes_table(found: LeftOut) -> list[str]:
    """Errors by size of the runs that were left out, with known and with unknown software."""
    lines = ["| " + " | ".join(("left out", *HEAD)) + " |", "|---" * (1 + len(HEAD)) + "|"]
    for name, judged in (("source unseen", found.sources), ("unseen software", found.generations)):
        own = cells(by_size(one for rows in judged.values() for one in rows))
        lines += [f"| {name} | {' | '.join(row)} |" for row in own]
    return lines


def neighbours() -> str:
    """GPUs that no run was available on, by what is assumed of them."""
    gpus: dict[str, list[str]] = {}
    for gpu, why in UNFITTED.items():
        gpus.setdefault(why.partition(": ")[2], []).append(gpu)
    return "; ".join(f"{', '.join(names)}: {what}" for what, names in gpus.items())


def wrapped(lines: Sequence[str]) -> list[str]:
    """The lines of a page, with paragraphs wrapped, and tables and what stands between ``` as they are."""
    found, code = list[str](), False
    for line in lines:
        code ^= line == "```"
        wide = len(line) > WIDTH and not code and not line.startswith(("|", "!", "`", " "))
        found += textwrap.wrap(line, WIDTH) if wide else [line]
    return found
