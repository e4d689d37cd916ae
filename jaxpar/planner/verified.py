"""Compiles plans for the cluster's GPUs, and compares each program with its prediction, class by class.

Memory and the time of a step become those of the program: kernels and transfers on the clock of the inspector
(`trace.clock`), by the same model of GPUs and links as the prediction. Stragglers, which no program has, stay as
predicted. A verdict names the classes of time in which the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Annotated

from rich.console import Console

from jaxpar.compiler.compile import compile_step
from jaxpar.compiler.program.hlo.records import ProgramError
from jaxpar.compiler.report import Analysis, make_report
from jaxpar.compiler.report.screen import print_lines, table
from jaxpar.compiler.wheels import cuda_release
from jaxpar.config import UserError
from jaxpar.config.schema.islands import IslandsConfig
from jaxpar.cost.hardware_model import HardwareModel
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.sources import chosen
from jaxpar.pages.units import percent, plural, seconds, size
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.islands import ISLANDS
from jaxpar.planner.step_time.step import AGAIN
from jaxpar.trace.parts import Run

CLASSES = {
    "matrix products": ("matmuls", f"{AGAIN}matmuls", "matmul"),
    "attention": ("attention", f"{AGAIN}attention"),
    "memory traffic": ("other", f"{AGAIN}other", "slices", "optimizer", "elementwise", "copy"),
    "tensor": ("tensor",),
    "context": ("context",),
    "experts": ("exchange",),
    "data": ("data",),
    "scales": ("scales",),
    "host": ("offload", "host"),
    "islands": (ISLANDS,),
    "pipe": ("bubble", "pipe"),
}
"""Classes of time: kinds of the predicted and of the compiled trace. The first is a part of a predicted step."""
VERDICT_SHARE: Annotated[float, chosen("what a verdict names")] = 0.05
"""Predicted and compiled seconds of a class do not agree if they differ by more than this share of the step."""


@dataclass(frozen=True)
class Verified:
    """A plan and the results of compiling it."""

    planned: Planned
    """The plan with the memory and the time of the program."""
    predicted: Planned
    """The plan as it was predicted."""
    fits: bool
    notes: tuple[str, ...] = ()
    """Where the compiled program differs from the one that will run, and caveats of its numbers."""

    @property
    def seconds_by_class(self) -> dict[str, tuple[float, float]]:
        """(predicted, compiled) by class."""
        before, after = (one.candidate.time.program.seconds_by_kind for one in (self.predicted, self.planned))
        of = lambda kinds, by_kind: sum(by_kind.get(kind, 0.0) for kind in kinds)
        return {name: (of(kinds, before), of(kinds, after)) for name, kinds in CLASSES.items()}

    @property
    def differences(self) -> dict[str, float]:
        """Predicted less compiled seconds by class, over the compiled step."""
        compiled = self.planned.candidate.seconds
        return {name: (before - after) / compiled for name, (before, after) in self.seconds_by_class.items()}

    @property
    def verdict(self) -> str:
        """Whether program and prediction agree, and if not, the classes that are apart."""
        before, after = self.predicted.candidate.seconds, self.planned.candidate.seconds
        apart = {name: share for name, share in self.differences.items() if abs(share) > VERDICT_SHARE}
        way = lambda less: "less" if less else "more"
        of_step = f"{percent(abs(after - before), before)} {way(after < before)} than the predicted {seconds(before)}"
        if not apart:
            return f"agrees by class: the program takes {seconds(after)}, {of_step}"
        differences = ", ".join(
            f"{name} {seconds(abs(share) * after)} {way(share > 0)}"
            for name, share in sorted(apart.items(), key=lambda item: -abs(item[1]))
        )
        return f"does not agree: the program takes {seconds(after)}, {of_step}: {differences}"

    def to_dict(self) -> dict[str, object]:
        """The verdict as JSON values, stored beside the plan."""
        return {
            "fits": self.fits,
            "verdict": self.verdict,
            "allocated_bytes": self.planned.candidate.memory.device,
            "predicted_step_time_s": self.predicted.candidate.seconds,
            "predicted_interval_s": self.predicted.interval,
            "predicted_peak_bytes": self.predicted.candidate.memory.device,
            "seconds_by_class": {
                name: {"predicted": before, "compiled": after}
                for name, (before, after) in self.seconds_by_class.items()
            },
            "notes": list(self.notes),
        }


def reason_against(cluster: Cluster, islands: IslandsConfig) -> str:
    """The reason why plans for GPUs cannot be compiled; empty where they can."""
    if len(cluster.gpus) > 1:
        return f"a program is timed for one kind of GPU, and {cluster.name} has {len(cluster.gpus)}"
    if islands.share_mesh and islands.every != islands.fragments:
        return (
            f"islands.every: {islands.every}: a program that exchanges weights in some steps alone would be counted as "
            f"if it did in each; expected islands.fragments: {islands.every}"
        )
    try:
        cuda_release()
    except UserError as error:
        return str(error)
    return ""


def verify(
    plans: Sequence[Planned],
    hardware: HardwareModel,
    limit_s: float,
    cache: Path | None,
    report_progress: Callable[[str], None] = lambda _: None,
) -> tuple[list[Verified], str]:
    """The first plans compiled for their cluster, as many as the limit allows, and why the others were not.

    No compile starts that would pass the limit if it took as long as the longest before it.

    Args:
        plans: of one cluster, the best first.
        hardware: what its GPUs and links reach.
        limit_s: for all compiles together.
        cache: folder of compiled programs; None keeps nothing.
        report_progress: called with a message before each compile, which takes minutes.
    """
    results, longest, end = [], 0.0, monotonic() + limit_s
    for index, planned in enumerate(plans, 1):
        start = monotonic()
        if longest > end - start:
            return results, f"a compile takes {seconds(longest)}, and {seconds(end - start)} of --timeout are left"
        axes = words.axes(planned.candidate.layout)
        report_progress(f"Compiling plan {index} of {len(plans)}, {axes}, for at most {seconds(end - start)} ...")
        try:
            results.append(compiled(planned, hardware, end - start, cache))
        except UserError as error:  # printed with the plans
            return results, str(error)
        longest = max(longest, monotonic() - start)
    return results, ""


def compiled(planned: Planned, hardware: HardwareModel, timeout_s: float, cache: Path | None) -> Verified:
    """A plan compiled for its cluster; the arguments are those of `verify`.

    Raises:
        UserError: there is no compiler for the devices, it took too long or failed, or its program cannot be read.
    """
    compilation = compile_step(planned.config, planned.cluster, timeout_s=timeout_s, cache=cache)
    try:
        report = make_report(Analysis(compilation, planned.cluster, hardware=hardware), planned.config.run.name)
    except ProgramError as error:
        raise UserError(f"XLA's program has a part that jaxpar cannot read: {error}") from error
    return judged(planned, report.allocated_bytes, report.fits, report.all_seconds_by_kind, report.notes)


def judged(
    planned: Planned,
    allocated_bytes: int,
    fits: bool,
    kinds: Mapping[str, float],
    notes: tuple[str, ...] = (),
) -> Verified:
    """A plan with the memory and the time of its program in place of the predicted ones.

    Args:
        planned: the plan as predicted.
        allocated_bytes: what XLA reserves on a device.
        fits: whether a device has that.
        kinds: the program's seconds by kind of kernel, and of message that is waited for or slows compute.
        notes: see `Verified`.
    """
    time, memory = planned.candidate.time, planned.candidate.memory
    factor = 1.0 if planned.spread is None else planned.spread.factor  # of measured runs, as it is in the prediction
    breakdown = dict.fromkeys(time.breakdown, 0.0) | {"stragglers": time.breakdown["stragglers"] / factor}
    for of in CLASSES.values():
        breakdown[of[0]] = sum(kinds.get(kind, 0.0) for kind in of)
    total, program = sum(breakdown.values()), sum(kinds.values())
    better = replace(
        planned.candidate,
        time=time.taking(total, breakdown, Run(program, kinds=dict(kinds))).times(factor),
        memory=memory._replace(temporaries=memory.temporaries + allocated_bytes - memory.device),
    )
    # The gain of placing nodes well is assumed to change by the same ratio.
    ratio = better.seconds / time.seconds
    after = replace(planned, candidate=better, default_seconds=planned.default_seconds * ratio)
    return Verified(after, planned, fits, notes)


def ranked(plans: Sequence[Planned], results: Iterable[Verified]) -> list[tuple[Planned, Verified | None]]:
    """Plans with their results: those that fit by the time of a step of their programs, those that were not compiled
    as they were ranked, and last those that do not fit."""
    ordered = sorted(results, key=lambda one: one.planned.candidate.seconds)
    known = [one.predicted for one in ordered]
    others = [planned for planned in plans if not any(planned is one for one in known)]
    return [
        *((one.planned, one) for one in ordered if one.fits),
        *((planned, None) for planned in others),
        *((one.planned, one) for one in ordered if not one.fits),
    ]


def print_verified(results: Sequence[Verified], console: Console) -> None:
    """The compiler's results beside the prediction, and a verdict for each plan."""
    names = [words.axes(one.planned.candidate.layout) for one in results]
    made = table(
        ("", *(head for name in names for head in (name, "compiled"))), ("",), "Predicted, and as XLA compiles it"
    )
    pair = lambda show, of: [show(of(planned)) for one in results for planned in (one.predicted, one.planned)]
    made.add_row("memory", *pair(size, lambda planned: planned.candidate.memory.device))
    for name in CLASSES:
        pairs = [part for one in results for part in one.seconds_by_class[name]]
        if any(pairs):
            made.add_row(name, *map(seconds, pairs))
    made.add_section()
    made.add_row("step", *pair(seconds, lambda planned: planned.candidate.seconds))
    interval = lambda least_and_most: "-" if least_and_most is None else " to ".join(map(seconds, least_and_most))
    made.add_row(words.INTERVAL, *pair(interval, lambda planned: planned.interval))
    console.print(made)
    lines = [
        f"{name}, {plural(one.planned.candidate.layout.microbatch, 'row')}: {'fits' if one.fits else 'does not fit'}; "
        f"{one.verdict}"
        for name, one in zip(names, results, strict=True)
    ]
    if not any(one.fits for one in results):
        lines.append("none of these fits: raise --top, or use less memory with --fix")
    notes = dict.fromkeys(note for one in results for note in one.notes)
    print_lines(console, *(f"  {line}" for line in (*lines, *notes)))
