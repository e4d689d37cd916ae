"""`--verify`: compiles plans for the cluster's GPUs, and ranks them by the programs' memory and exposed bytes.

The program gives the memory of a device and the bytes that are sent while nothing computes. Both replace what was
predicted: memory is what XLA allocates, and the time waiting for messages follows from those bytes, and from how much
hidden messages slow down the compute beside them, by the same model of links. Compute, the bubble, copies to the host
and the update stay as predicted: products are timed by tiles there, and a program's conditionals count every branch.
The program's own seconds stand beside the predicted ones, by class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.compiler.report.record import Collective
from jaxpar.config import UserError
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.report import words
from jaxpar.planner.report.columns import INTERVAL
from jaxpar.planner.search.candidate import Planned
from jaxpar.units import seconds, size

WAITS = ("tensor", "context", "exchange", "data", "scales")
"""Parts of a step's time that wait for messages of the program."""
CLASSES = {
    "matrix products": (("matmuls",), ("matmul",)),
    "attention": (("attention",), ("attention",)),
    "memory traffic": (("other", "slices", "optimizer"), ("elementwise", "copy")),
    "recomputation": (("recomputation",), ()),
    "tensor": (("tensor",), ("tensor",)),
    "context": (("context",), ("context",)),
    "experts": (("exchange",), ("exchange",)),
    "data": (("data",), ("data",)),
    "scales": (("scales",), ("scales",)),
    "host": (("offload",), ("host",)),
    "pipe": (("bubble",), ("pipe",)),
    "other waiting": (("stragglers",), ()),
}
"""Classes of time: parts of a predicted step, and kinds of kernels of a program and axes of what it waits for. A
program's recomputation is in its kernels, and so is what ranks of a pipeline compute in ticks that are idle."""
OF_TOKENS = ("exchange_tokens", "gather_tokens", "scatter_tokens")
"""Collectives that send tokens to their experts."""
OF_WEIGHTS = ("gather_weight", "scatter_gradient", "gather_rows", "scatter_rows")
"""Collectives that belong to `data` whatever axes they run over."""
OF_SCALES = "reduce_max"
"""Of FP8 operands, over all ranks that hold a part of a tensor."""


@dataclass(frozen=True)
class Verified:
    """A plan and the results of compiling it."""

    planned: Planned
    """The plan with the memory and the waiting time of the program."""
    predicted: Planned
    """The plan as it was predicted."""
    fits: bool
    exposed_bytes: float
    """Bytes that a device sends to others in a step while nothing computes, in the compiled program."""
    notes: tuple[str, ...] = ()
    """Where the compiled program differs from the one that will run."""
    compiled: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the program by kind of kernel, and those that it waits for, by axis: keys of `CLASSES`."""

    @property
    def seconds_by_class(self) -> dict[str, tuple[float, float | None]]:
        """(predicted, compiled) by class; None where the program's seconds are in other classes."""
        breakdown = self.predicted.candidate.time.breakdown
        of = lambda names, found: sum(found.get(name, 0.0) for name in names)
        return {
            name: (of(parts, breakdown), of(kinds, self.compiled) if kinds else None)
            for name, (parts, kinds) in CLASSES.items()
        }

    @property
    def differences(self) -> dict[str, float]:
        """Predicted less compiled seconds by class, over the compiled step.

        Recomputation counts as matrix products, which most of it is. All ranks of a pipeline run each tick, and so the
        predicted bubble is in the classes of what they run.
        """
        time, compiled = self.predicted.candidate.time, sum(self.compiled.values())
        once = sum(time.breakdown[name] for name in ("optimizer", "stragglers"))
        ticks = (time.seconds - once) / (time.seconds - once - time.breakdown["bubble"])
        found = {
            name: (before * ticks - after) / compiled
            for name, (before, after) in self.seconds_by_class.items()
            if after is not None
        }
        found["pipe"] = -sum(self.compiled.get(kind, 0.0) for kind in CLASSES["pipe"][1]) / compiled
        found["matrix products"] += ticks * time.breakdown["recomputation"] / compiled
        return found

    def to_dict(self) -> dict[str, Any]:
        """For JSON, beside the plan."""
        return {
            "fits": self.fits,
            "allocated_bytes": self.planned.candidate.memory.device,
            "exposed_bytes": self.exposed_bytes,
            "predicted_step_time_s": self.predicted.candidate.seconds,
            "predicted_interval_s": interval_of(self.predicted),
            "predicted_peak_bytes": self.predicted.candidate.memory.device,
            "seconds_by_class": {
                name: {"predicted": before, "compiled": after}
                for name, (before, after) in self.seconds_by_class.items()
            },
            "notes": list(self.notes),
        }


def interval_of(planned: Planned) -> list[float] | None:
    """The least and the greatest step in four of five cases; None where that is not known."""
    return None if planned.spread is None else list(planned.spread.interval(planned.candidate.seconds))


def check_verifiable(cluster: Cluster) -> None:
    """Raise `UserError` where `--verify` is impossible, before a search rather than after it."""
    if is_cpu(cluster):
        raise UserError("--verify: compiles for GPUs, and this cluster is of CPUs; leave it out")


def verify(
    plans: Sequence[Planned],
    hardware: HardwareModel,
    timeout_s: float,
    cache: Path | None,
    report_progress: Callable[[str], None] = lambda _: None,
) -> list[Verified]:
    """Each plan compiled for its cluster; those that fit first, by the time of a step with the program's messages.

    Args:
        plans: of one cluster.
        hardware: what its GPUs and links reach.
        timeout_s: for each compile.
        cache: folder of compiled programs; None keeps nothing.
        report_progress: called with a message before each compile, which takes minutes.

    Raises:
        UserError: there is no compiler for the devices, or it failed.
    """
    found = []
    for place, planned in enumerate(plans, 1):
        report_progress(f"Compiling {place} of {len(plans)}: {words.axes(planned.candidate.layout)}")
        compilation = compile_step(planned.config, planned.cluster, timeout_s=timeout_s, cache=cache)
        report = make_report(Analysis(compilation, planned.cluster, hardware=hardware), planned.config.run.name)
        found.append(
            judged(
                planned, hardware, report.allocated_bytes, report.fits, report.collectives, report.notes,
                report.seconds_by_kind,
            )
        )  # fmt: skip
    return ranked(found)


def judged(
    planned: Planned,
    hardware: HardwareModel,
    allocated_bytes: int,
    fits: bool,
    collectives: Iterable[Collective],
    notes: tuple[str, ...] = (),
    kernels: Mapping[str, float] | None = None,
) -> Verified:
    """A plan with the memory and the messages of its program in place of the predicted ones.

    The program's messages are timed at one bandwidth between hosts, the median where several were measured, whatever
    the places of its nodes. A message that compute hides takes from it what the hardware model has for it
    (`overlap_slowdown`), as in the prediction. Ranks of a pipeline send in ticks in which they have nothing to do, too;
    those are in the predicted bubble, and so the messages count by the share of the step that is none. `kernels` has
    the program's seconds by kind.
    """
    time, memory = planned.candidate.time, planned.candidate.memory
    busy = 1 - time.breakdown["bubble"] / time.seconds
    waits: dict[str, float] = dict.fromkeys(WAITS, 0.0)
    sent, compiled = 0.0, defaultdict(float, kernels or {})
    for row in collectives:
        apart = next((axis for axis in ("host", "pipe") if axis in row.axis.split("+")), None)
        compiled[apart or part_of(row)] += row.exposed_s
        if apart or not row.seconds:
            continue
        hidden = hardware.overlap_slowdown * (row.seconds - row.exposed_s)
        waits[part_of(row)] += busy * (row.exposed_s + hidden)
        sent += row.bytes * row.exposed_s / row.seconds
    breakdown = {**time.breakdown, **waits}
    whole = sum(breakdown.values())
    faster = time.seconds / whole
    better = replace(
        planned.candidate,
        time=replace(
            time,
            seconds=whole,
            breakdown=breakdown,
            tokens_per_s_per_gpu=faster * time.tokens_per_s_per_gpu,
            mfu=faster * time.mfu,
        ),
        memory=memory._replace(temporaries=memory.temporaries + allocated_bytes - memory.device),
    )
    default = planned.default_seconds / faster  # assumed to change by the same ratio
    found = replace(planned, candidate=better, default_seconds=default)
    return Verified(found, planned, fits, sent, notes, dict(compiled))


def part_of(row: Collective) -> str:
    """Which part of a step's time a message belongs to."""
    axes = row.axis.split("+")
    if row.collective in OF_TOKENS:
        return "exchange"
    if (
        row.collective in OF_WEIGHTS
        or not {"tensor", "context"} & set(axes)
        or {"replica", "fsdp", "expert"} & set(axes)
    ):
        return "scales" if row.collective == OF_SCALES else "data"
    return "tensor" if "tensor" in axes else "context"


def ranked(found: Iterable[Verified]) -> list[Verified]:
    """Those that fit first, by the time of a step."""
    return sorted(found, key=lambda one: (not one.fits, one.planned.candidate.seconds))


def print_verified(found: Sequence[Verified], console: Console) -> None:
    """The compiler's results beside the prediction."""
    table = Table(
        title="As XLA compiles them", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for name in (
        "mesh", "rows", "memory predicted", "allocated", "ratio", "fits", "waiting predicted", "exposed",
        "sent exposed", "step predicted", "step",
    ):  # fmt: skip
        table.add_column(name, justify="left" if name == "mesh" else "right")
    for one in found:
        before, after = one.predicted.candidate, one.planned.candidate
        table.add_row(
            words.axes(after.layout),
            str(after.layout.microbatch),
            size(before.memory.device),
            size(after.memory.device),
            f"{before.memory.device / after.memory.device:.3f}",
            "yes" if one.fits else "no",
            seconds(sum(before.time.breakdown[name] for name in WAITS)),
            seconds(sum(after.time.breakdown[name] for name in WAITS)),
            size(one.exposed_bytes),
            seconds(before.seconds),
            seconds(after.seconds),
        )
    console.print(table)
    console.print(_classes(found))
    if not found[0].fits:
        console.print("  none of these fits: raise --top, or hold less with --fix", highlight=False, soft_wrap=True)
    for note in dict.fromkeys(note for one in found for note in one.notes):
        console.print(f"  {note}", highlight=False, soft_wrap=True)


def _classes(found: Sequence[Verified]) -> Table:
    """Predicted seconds and those of the program by class, in pairs of columns; below them the step before and after,
    as in the first table, with its interval."""
    table = Table(
        title="By class of time: predicted, compiled", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        padding=(0, 1),
    )  # fmt: skip
    table.add_column("class")
    for one in found:
        table.add_column(words.axes(one.planned.candidate.layout), justify="right")
        table.add_column("compiled", justify="right")
    for name in CLASSES:
        pairs = [one.seconds_by_class[name] for one in found]
        if any(before or after for before, after in pairs):
            shown = [text for before, after in pairs for text in (seconds(before), _shown(after))]
            table.add_row(name, *shown)
    steps = [planned for one in found for planned in (one.predicted, one.planned)]
    table.add_section()
    table.add_row("step", *(seconds(planned.candidate.seconds) for planned in steps))
    table.add_row(
        INTERVAL, *("-" if (own := interval_of(one)) is None else " to ".join(map(seconds, own)) for one in steps)
    )
    return table


def _shown(compiled: float | None) -> str:
    return "in the others" if compiled is None else seconds(compiled)
