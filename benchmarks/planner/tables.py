"""Tables of the fit: parameters with the runs behind them, collectives measured alone, errors by source."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.planner.fit import FITTED, PRIORS, START, Behind, Fit
from benchmarks.planner.leave_out import LeftOut
from jaxpar.cost.hardware_model import AMPERE, UNFITTED, described
from jaxpar.cost.messages import network_of
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.planner.evidence.errors import Anchored, Report, report
from jaxpar.units import KILO, MICRO, MILLI, percent

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


def collectives_table(path: Path) -> list[str]:
    """All-reduces inside a host, measured and predicted, by GPU and ranks."""
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    lines = ["| GPU | ranks | median error | largest message: measured | predicted |", "|---|---|---|---|---|"]
    for gpu, short, share in (("A100", "a100-80", AMPERE.node_share), ("V100", "v100-32", 0.895)):
        network = network_of(parse_cluster(f"{short}:1x8"), replace(AMPERE, node_share=share))
        for ranks in (2, 4, 8):
            own = [
                (int(r["size_bytes"]), float(r["time_us"]))
                for r in rows
                if r["gpu"] == gpu and int(r["n_gpus"]) == ranks
            ]
            ring = network.ring(ranks, 1)
            errors = [abs(ring.reduce(size) / MICRO / time - 1) for size, time in own]
            size, time = own[-1]
            lines.append(
                f"| {gpu} | {ranks} | {percent(float(np.median(errors)))} | {time / KILO:.2f} ms | "
                f"{ring.reduce(size) / MILLI:.2f} ms |"
            )
    return lines


def parameters_table(found: Fit) -> list[str]:
    """Every parameter: value on Ampere, on Hopper, unit, meaning."""
    fitted = {name for _, name, *_ in FITTED}
    lines = ["| parameter | A100, A800 | H100, H800 | unit | what it is | from |", "|---|---|---|---|---|---|"]
    for (name, ampere, unit, meaning), (_, hopper, *_) in zip(
        described(found.ampere), described(found.hopper), strict=True
    ):
        source = "fitted" if name in fitted else SOURCES[name]
        lines.append(f"| `{name}` | {ampere:.3g} | {hopper:.3g} | {unit} | {meaning} | {source} |")
    return lines


SOURCES = {
    "launch_seconds": "usual; no run in the data is limited by it",
    "node_share": "all-reduces measured alone",
    "network_share": "nccl-tests between two and three hosts: 79 to 96% (nccl issues 1244, 495; nccl-tests issue 119)",
    "network_decline": "nccl-tests on 32 hosts: 50% (all-gather) and 85% (all-reduce; nccl issue 1218)",
    "message_seconds": "all-reduces measured alone",
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
        "| source | rows | one MFU per GPU | unseen software | p90 | bias | one run measured | source unseen | p90 "
        "| bias | one run measured |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    columns: list[list[float]] = []
    for name in sorted(found.sources):
        of = lambda judged: [one.error for one in judged if one.error is not None]
        unseen, source = of(found.generations[name]), of(found.sources[name])
        middle = lambda errors: float(np.median(np.abs(errors)))
        cells = [
            middle(found.naive[name]), middle(unseen), _high(unseen), float(np.median(unseen)),
            middle(_errors(found.anchored[name])), middle(source), _high(source), float(np.median(source)),
            middle(_errors(found.anchored_sources[name])),
        ]  # fmt: skip
        columns.append(cells)
        lines.append(f"| {name} | {len(source)} | {' | '.join(_cells(cells))} |")
    means = [float(np.mean(column)) for column in zip(*columns, strict=True)]
    rows = sum(len(own) for own in found.sources.values())
    return [*lines, f"| **mean over sources** | {rows} | {' | '.join(_cells(means))} |"]


def _cells(values: Sequence[float]) -> list[str]:
    signed = (3, 7)
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


def neighbours() -> str:
    """GPUs that no run was available on, by what is assumed of them."""
    gpus: dict[str, list[str]] = {}
    for gpu, why in UNFITTED.items():
        gpus.setdefault(why.partition(": ")[2], []).append(gpu)
    return "; ".join(f"{', '.join(names)}: {what}" for what, names in gpus.items())


def wrapped(lines: Sequence[str]) -> list[str]:
    """The lines of a page, with paragraphs wrapped and tables as they are."""
    wide = lambda line: len(line) > WIDTH and not line.startswith(("|", "!", "`", " "))
    return [part for line in lines for part in (textwrap.wrap(line, WIDTH) if wide(line) else [line])]
