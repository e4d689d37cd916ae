"""The parts of compiled programs in numbers that no rate enters: shapes, bytes and how often, by trace and in order.

A row of parts.csv is kernels between two events (those that are alike, and those of a kind without products, together),
the start of a message, its end, or a trace that repeats. What they take is derived on reading, by the clock and the
rates of today.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jaxpar.compiler.program.attribution import Movement
from jaxpar.compiler.program.costs.matmuls import Attention, Matmul, Product
from jaxpar.compiler.program.costs.ops import Cost
from jaxpar.compiler.report import Analysis
from jaxpar.compiler.report.step_timer import StepTimer
from jaxpar.config import UserError
from jaxpar.trace.clock import Clock
from jaxpar.trace.parts import Done, Message, Op, Part, Repeat, Run, Trace

PARTS = Path(__file__).parent / "parts.csv"
COLUMNS = ("config", "cluster", "overrides", "trace", "part", "kind", "times", "bytes", "flops", "detail")
HEAD = (
    "# Parts of compiled programs, in order, by what their rows in compiled.csv were made from; no rate enters them.",
    "# The first part of a program has its key.",
    "# kernels: so many of a kind, with the bytes of each, its FLOPs outside products, and its products.",
    "# start, done: of a message, with executions in a step, bytes, link and what it is for. repeat: of a trace.",
)


class Key(NamedTuple):
    """The configuration, cluster and overrides of a program."""

    config: str
    """The name of a file of configs/."""
    cluster: str
    overrides: str
    """`section.key=value`, as for `--set`, with spaces between."""


class Row(NamedTuple):
    """A row of the file without the key of its program."""

    trace: str
    part: str
    kind: str
    times: float = 1
    bytes: float = 0
    """Bytes of one kernel, or of one execution of a message."""
    flops: float = 0.0
    """FLOPs of one kernel, outside products."""
    detail: str = ""


def rows_of(analysis: Analysis, kind_of: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """The parts of a program; `kind_of` has for each message the shares of its time by kind."""
    costs = {cost.op.name: cost for cost in analysis.costs}
    moved = {one.transfer.start.name: one for one in analysis.movements}
    traces = {trace: f"t{number}" for number, trace in enumerate(analysis.schedule.traces.values(), 1)}
    names = {name: f"m{number}" for number, name in enumerate(moved, 1)}
    rows = list[Row]()
    for trace, name in traces.items():
        kernels = list[Cost]()
        for part in (*trace.parts, None):
            if isinstance(part, Op):
                kernels.append(costs[part.name])
                continue
            rows += _kernels(name, kernels)
            kernels = []
            if isinstance(part, Repeat):
                assert isinstance(part.trace, Trace), "of a program"
                if part.trace.parts:
                    rows.append(Row(name, "repeat", traces[part.trace], part.times))
            elif isinstance(part, Message):
                rows.append(_start(analysis.timer, name, names[part.name], part, moved[part.name], kind_of[part.name]))
            elif isinstance(part, Done):
                rows.append(Row(name, "done", names[part.name]))
    return rows


def _kernels(trace: str, costs: Sequence[Cost]) -> Iterator[Row]:
    alike: dict[tuple[str, tuple[Product, ...]], list[Cost]] = defaultdict(list)
    for cost in costs:
        alike[cost.kind, cost.products].append(cost)
    for (kind, products), group in alike.items():
        moved, vector = (
            sum(each) for each in zip(*((one.moved_bytes, one.vector_flops) for one in group), strict=True)
        )
        times = len(group) if products else 1
        yield Row(trace, "kernels", kind, times, moved / times, vector / times, "; ".join(map(_written, products)))


def _start(
    timer: StepTimer, trace: str, name: str, message: Message, one: Movement, shares: Mapping[str, float]
) -> Row:
    link = "host" if one.transfer.channel == "host" else f"{one.kind} {one.ranks} {timer.in_one_host(one)}"
    parts = " ".join(f"{kind}={share:.4g}" for kind, share in sorted(shares.items()) if share)
    ends = "waits" if message.synchronous else "starts"
    detail = "; ".join((name, link, message.channel, ends, parts))
    return Row(trace, "start", message.kind, one.executions, one.operand_bytes, 0.0, detail)


def _written(product: Product) -> str:
    shape = product.shape
    if shape is None:
        return f"{product.arithmetic} {product.flops:.10g}"
    numbers = (f"{one:.12g}" if isinstance(one, float) else str(one) for one in shape)
    return " ".join((product.arithmetic, f"{product.flops:.10g}", type(shape).__name__, *numbers))


def _read_product(text: str) -> Product:
    arithmetic, flops, *rest = text.split()
    make = partial(Product, float(flops), 0.0, arithmetic)
    if not rest:
        return make(None)
    name, *numbers = rest
    if name == "Attention":
        kernels, rows, heads, queries, keys, width, value_width, backward = numbers
        sizes = int(rows), int(heads), int(queries), float(keys), int(width), int(value_width)
        return make(Attention(kernels, *sizes, float(backward)))
    m, n, k, batch, out_bytes, *kind = numbers
    return make(Matmul(float(m), int(n), float(k), int(batch), float(out_bytes), *(one == "True" for one in kind)))


class Times(NamedTuple):
    """A program on the clock."""

    step: Run
    needed: dict[str, float]
    """Seconds of messages of a step, by kind."""
    exposed: dict[str, float]
    """Seconds of these messages that no compute hides."""


def times_of(rows: Sequence[Row], timer: StepTimer) -> Times:
    """The seconds of a program with these parts."""
    parts: dict[str, list[Part]] = defaultdict(list)
    traces = dict[str, Trace]()
    starts = dict[str, tuple[Row, str]]()
    for index, row in enumerate(rows):
        trace_parts = parts[row.trace]
        if row.part == "kernels":
            products = tuple(map(_read_product, filter(None, row.detail.split("; "))))
            took = row.times * timer.work(products, row.flops, row.bytes)
            trace_parts.append(Op(f"{row.kind} {index}", took, row.kind))
        elif row.part == "repeat":
            trace_parts.append(Repeat(f"{row.kind} {index}", traces[row.kind], row.times))
        elif row.part == "done":
            trace_parts.append(Done(row.kind))
        else:
            name, link, channel, ends, shares = row.detail.split("; ")
            starts[name] = row, shares
            trace_parts.append(Message(name, _seconds(timer, link, row.bytes), channel, ends == "waits", row.kind))
        if index + 1 == len(rows) or rows[index + 1].trace != row.trace:
            traces[row.trace] = Trace(row.trace, tuple(trace_parts))
    clock = Clock(timer.model.overlap_slowdown, records=True)
    step = clock.run(traces[rows[-1].trace])
    needed: dict[str, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    for name, (row, shares) in starts.items():
        for kind, share in (one.split("=") for one in shares.split()):
            needed[kind] += float(share) * row.times * clock.messages[name].seconds
            exposed[kind] += float(share) * row.times * clock.messages[name].exposed
    return Times(step, dict(needed), dict(exposed))


def counts_of(rows: Sequence[Row]) -> dict[str, tuple[float, float, float]]:
    """(executions, bytes, FLOPs of products) of a step, by kind of kernel, and of message by what waits for it."""
    runs = defaultdict[str, float](float, {rows[-1].trace: 1.0})
    counts: dict[str, tuple[float, float, float]] = defaultdict(lambda: (0.0, 0.0, 0.0))
    for row in reversed(rows):
        if row.part == "repeat":
            runs[row.kind] += row.times * runs[row.trace]
        elif row.part != "done":
            times = row.times if row.part == "start" else row.times * runs[row.trace]
            flops = sum(_read_product(one).flops for one in row.detail.split("; ") if one and row.part == "kernels")
            before = counts[row.kind]
            counts[row.kind] = before[0] + times, before[1] + times * row.bytes, before[2] + times * flops
    return dict(counts)


def _seconds(timer: StepTimer, link: str, moved: float) -> float:
    if link == "host":
        return timer.copy(moved)
    kind, ranks, in_one_host = link.split()
    return timer.collective(kind, moved, int(ranks), int(in_one_host))


def read_parts(file: Path = PARTS) -> dict[Key, tuple[Row, ...]]:
    """The parts of programs. Raises `UserError` for a file without their keys, or with a program in two places."""
    programs: dict[Key, list[Row]] = {}
    last: Key | None = None
    with file.open(newline="") as stream:
        reader = csv.DictReader(line for line in stream if not line.startswith("#"))
        if reader.fieldnames != [*COLUMNS]:
            raise UserError(f"{file.name}: expected the columns {', '.join(COLUMNS)}")
        for cells in reader:
            # A program's first row alone has its key.
            if cells["config"]:
                last = Key(cells["config"], cells["cluster"], cells["overrides"])
                if last in programs:
                    raise UserError(f"{file.name}: {' '.join(last)} is there twice")
                programs[last] = []
            if last is None:
                raise UserError(f"{file.name}: expected config, cluster and overrides in a program's first row")
            times, moved, flops = (float(cells[name] or 0) for name in ("times", "bytes", "flops"))
            one = Row(cells["trace"], cells["part"], cells["kind"], times, moved, flops, cells["detail"])
            programs[last].append(one)
    return {key: tuple(rows) for key, rows in programs.items()}


def write_parts(parts: Mapping[Key, Sequence[Row]], file: Path = PARTS) -> None:
    """The file, with these programs."""
    with file.open("w", newline="") as stream:
        stream.write("\n".join(HEAD) + "\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for key, rows in parts.items():
            for index, row in enumerate(rows):
                numbers = (f"{one:.12g}" if one else "" for one in (row.times, row.bytes, row.flops))
                first_cells = ("", "", "") if index else key
                writer.writerow((*first_cells, row.trace, row.part, row.kind, *numbers, row.detail))
