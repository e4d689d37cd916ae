"""`explain`, `compare` and `--verify`: what stands in plan.json, two of them, and what the GPU compiler says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from jaxpar.compiler.compile import DEFAULT_CACHE, compile_step
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.config import UserError
from jaxpar.config.sections import config_difference
from jaxpar.observe.amounts import seconds, share, size
from jaxpar.planner import words
from jaxpar.planner.document import PlanDocument, read_document
from jaxpar.planner.machine import is_cpu
from jaxpar.planner.search import Planned


def print_explanation(path: Path, console: Console) -> None:
    """All that `plan.json` says, in words. Raises `UserError` where it is none."""
    document = read_document(path)
    plan, told = document.plan, document.predicted
    mesh = " x ".join(f"{axis} {n}" for axis, n in dict(plan.axes).items() if n > 1) or "one device"
    console.print(f"{path}: {document.config.run.name} on {document.cluster}", style="bold", highlight=False)
    lines = [
        ("mesh", mesh),
        ("batch", f"{plan.axes.data} data ranks x {plan.microbatch_rows} rows x {plan.microbatches} microbatches"),
        ("schedule", f"{plan.schedule}, {plan.virtual_stages} chunks a rank of {max(plan.stage_layers)} layers"),
        ("ZeRO", f"stage {plan.zero}"),
        ("attention", f"{plan.attention.name}: {plan.attention.reason}"),
        ("context", f"{plan.context_strategy.name}: {plan.context_strategy.reason}"),
        *[
            (f"{run.layers} layers", ", ".join(f"{name} {own}" for name, own in run.activations.items()))
            for run in plan.runs
        ],
        ("predicted", f"{seconds(told['step_time_s'])} a step, {told['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU, "
                      f"MFU {100 * told['mfu']:.1f}%, {size(told['peak_bytes'])} of a GPU"),
    ]  # fmt: skip
    for name, said in lines:
        console.print(f"  {name:<11}{said}", highlight=False, soft_wrap=True)
    _print_parts(document, console)


def _print_parts(document: PlanDocument, console: Console) -> None:
    told = document.predicted
    for name, spent in sorted(told["breakdown"].items(), key=lambda item: -item[1]):
        if spent > 0:
            meaning = words.MEANINGS.get(name, name)
            console.print(
                f"  {name:<14}{seconds(spent):>9} {share(spent, told['step_time_s']):>6}  {meaning}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


def print_comparison(first: Path, second: Path, console: Console) -> None:
    """Two plans side by side: what differs in their settings, time and memory. Raises `UserError`."""
    a, b = read_document(first), read_document(second)
    console.print("Settings", style="bold")
    for line in config_difference(a.config, b.config) or ["no difference"]:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("", str(first), str(second), "difference"):
        table.add_column(name, justify="left" if not name else "right")

    def row(name: str, one: float, other: float, show: object) -> None:
        if one or other:
            table.add_row(name, show(one), show(other), show(other - one))  # type: ignore[operator]

    row("step", a.predicted["step_time_s"], b.predicted["step_time_s"], seconds)
    for name in dict.fromkeys((*a.predicted["breakdown"], *b.predicted["breakdown"])):
        row(f"  {name}", a.predicted["breakdown"].get(name, 0), b.predicted["breakdown"].get(name, 0), seconds)
    row("memory", a.predicted["peak_bytes"], b.predicted["peak_bytes"], size)
    for name in dict.fromkeys((*a.predicted["memory"], *b.predicted["memory"])):
        row(f"  {name}", a.predicted["memory"].get(name, 0), b.predicted["memory"].get(name, 0), size)
    console.print(table)


@dataclass(frozen=True)
class Verified:
    """A plan with what the GPU compiler made of it."""

    planned: Planned
    allocated_bytes: int
    fits: bool
    exposed_bytes: float
    """Bytes that a device sends in a step while nothing computes, in the compiled program."""


def verify(plans: Sequence[Planned], timeout_s: float, cache: Path | None = DEFAULT_CACHE) -> list[Verified]:
    """Each plan compiled for its cluster; those that fit first, by predicted time.

    Raises:
        UserError: there is no compiler for the devices, or it failed.
    """
    if is_cpu(plans[0].cluster):
        raise UserError("--verify: compiles for GPUs, and this cluster is of CPUs; leave it out")
    found = []
    for planned in plans:
        compilation = compile_step(planned.config, planned.cluster, timeout_s=timeout_s, cache=cache)
        report = make_report(Analysis(compilation, planned.cluster), planned.config.run.name)
        exposed = sum(row.bytes * row.exposed_s / row.seconds for row in report.collectives if row.seconds)
        found.append(Verified(planned, report.allocated_bytes, report.fits, exposed))
    return sorted(found, key=lambda one: (not one.fits, one.planned.found.seconds))


def print_verified(found: Sequence[Verified], console: Console) -> None:
    """What the compiler says beside what was predicted."""
    table = Table(
        title="As XLA compiles them", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for name in ("mesh", "step", "memory predicted", "allocated", "ratio", "fits", "sent exposed"):
        table.add_column(name)
    for one in found:
        predicted = one.planned.found.memory.device
        table.add_row(
            words.axes(one.planned.found.layout),
            seconds(one.planned.found.seconds),
            size(predicted),
            size(one.allocated_bytes),
            f"{predicted / one.allocated_bytes:.3f}",
            "yes" if one.fits else "no",
            size(one.exposed_bytes),
        )
    console.print(table)


def reordered(found: Sequence[Verified]) -> list[Planned]:
    """The plans in the order of the compiler's verdict, with its memory."""
    return [
        replace(
            one.planned,
            found=replace(
                one.planned.found,
                memory=one.planned.found.memory._replace(
                    temporaries=one.planned.found.memory.temporaries
                    + one.allocated_bytes
                    - one.planned.found.memory.device
                ),
            ),
        )
        for one in found
    ]
