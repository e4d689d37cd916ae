"""From a compilation to its report."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from jaxpar.compiler.program.attribution import Movement, place
from jaxpar.compiler.program.costs.ops import float8_flops, flops_by_kind, recomputed_flops
from jaxpar.compiler.program.hlo.records import Frame, leaves
from jaxpar.compiler.program.memory.makers import Makers
from jaxpar.compiler.program.memory.timeline import Occupant, occupants
from jaxpar.compiler.program.schedule import Overlap
from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.record import Collective, DeviceCopy, Exposure, LiveBuffer, PipeRank, Report
from jaxpar.config.plan import Plan
from jaxpar.cost.hardware_model import borrowed
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.memory import pool_bytes

LARGEST = 10
COMPILING = "jaxpar/compiler/"
"""Part of the file of the line that XLA gives for what is not from one of ours."""
_OUTSIDE = re.compile(r"^.*/site-packages/|^.*/(?=(?:jaxpar|pallas_kernels)/)")
"""What comes before the part of a path that is shown."""


def make_report(analysis: Analysis, config: str) -> Report:
    """The report of a compiled step; `config` is what the user calls the configuration."""
    compilation, memory = analysis.compilation, analysis.compilation.memory
    found = occupants(analysis.buffers, analysis.peak[0])
    host = memory.host_argument + memory.host_output - memory.host_alias + memory.host_temp
    classes = {**analysis.classes.totals(found), "host": host}
    device = analysis.cluster.device_bytes
    usable, allocated = pool_bytes(device), memory.total_allocation + analysis.buffers.beside
    # XLA's own peak is that of the fullest memory space, which may be the host's.
    peak_bytes = analysis.peak[1] if memory.host_temp or analysis.buffers.beside else memory.peak
    axes, costs = dict(compilation.plan.axes), analysis.costs
    unknown = analysis.module.unknown.notes()  # complete once the costs are known
    return Report(
        config=config,
        cluster=compilation.cluster,
        gpu=gpu_named(compilation.gpu).name,
        devices=compilation.plan.axes.devices,
        axes=axes,
        notes=(
            *compilation.notes,
            *unknown,
            *_kinds_note(analysis),
            *_pipeline_note(analysis),
            *load_note(compilation.plan),
            *_time_note(analysis),
        ),
        fits=allocated <= usable,
        device_bytes=device,
        reserve_bytes=device - usable,
        margin_bytes=usable - allocated,
        peak_bytes=peak_bytes,
        allocated_bytes=allocated,
        host_bytes=host,
        classes=classes,
        pipe_ranks=tuple(PipeRank(rank, peak_bytes, classes) for rank in range(axes["pipe"])),
        collectives=collectives(analysis.schedule.overlaps),
        exposures=exposures(analysis.schedule.overlaps),
        flops=sum(flops_by_kind(costs).values()),
        flops_by_kind=flops_by_kind(costs),
        recompute_flops=recomputed_flops(costs),
        float8_flops=float8_flops(costs),
        compiler_recomputes=sum(cost.op.name in analysis.counts.repeated_by_xla for cost in costs),
        branches=len(analysis.counts.conditionals),
        compute_seconds=analysis.schedule.compute_seconds,
        exposed_seconds=analysis.schedule.exposed_seconds,
        exposed_fraction=analysis.schedule.exposed_fraction,
        seconds_by_kind=_seconds_by_kind(analysis),
        largest_buffers=_largest(analysis, found),
        compile_seconds=compilation.compile_seconds,
        copies=device_copies(analysis),
    )


@dataclass
class _Sums:
    movements: dict[str, float]
    bytes: float = 0.0
    recomputed: float = 0.0
    seconds: float = 0.0
    enclosed: float = 0.0
    exposed: float = 0.0


def collectives(overlaps: tuple[Overlap, ...]) -> tuple[Collective, ...]:
    """Transfers summed by axes, collective, kind, dtype and whether they leave a host. A combined transfer gives
    each of its arrays their share of its time, by bytes."""
    sums: dict[tuple[str, str, str, str, bool], _Sums] = defaultdict(lambda: _Sums({}))
    for overlap in overlaps:
        movement = overlap.movement
        for part in movement.parts:
            key = (
                axis_of(movement),
                collective_name(movement, part.collective),
                movement.kind,
                part.dtype,
                movement.crosses_nodes,
            )
            share = part.sent_bytes / movement.sent_bytes if movement.sent_bytes else 1 / len(movement.parts)
            times, entry = movement.executions, sums[key]
            entry.movements[movement.transfer.start.name] = times
            entry.bytes += part.sent_bytes * times
            entry.recomputed += part.sent_bytes * times if part.recomputed else 0.0
            entry.seconds += overlap.seconds * share * times
            entry.enclosed += overlap.enclosed_seconds * share * times
            entry.exposed += overlap.exposed_per_step * share
    rows = [
        Collective(*key, sum(s.movements.values()), s.bytes, s.recomputed, s.seconds, s.enclosed, s.exposed)
        for key, s in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.axis, row.collective, row.dtype)))


def exposures(overlaps: tuple[Overlap, ...]) -> tuple[Exposure, ...]:
    """The transfers of the program that are waited for longest in a step."""
    longest = sorted(overlaps, key=lambda overlap: -overlap.exposed_per_step)[:LARGEST]
    return tuple(
        Exposure(
            axis=axis_of(overlap.movement),
            collectives="+".join(
                collective_name(overlap.movement, collective) for collective in overlap.movement.collectives
            ),
            kind=overlap.movement.kind,
            source=where(overlap.movement.source),
            count=overlap.movement.executions,
            synchronous=overlap.movement.transfer.synchronous,
            needs_s=overlap.seconds,
            enclosed_s=overlap.enclosed_seconds,
            exposed_s=overlap.exposed,
        )
        for overlap in longest
        if overlap.exposed_per_step > 0
    )


def device_copies(analysis: Analysis) -> tuple[DeviceCopy, ...]:
    """All copies within the device, those first that take longest in a step."""
    seconds = analysis.kernel_seconds
    step = lambda cost: seconds[cost.op.name] * cost.executions
    longest = sorted((cost for cost in analysis.costs if cost.kind == "copy"), key=step, reverse=True)
    makers = Makers(analysis.module, analysis.buffers.order)
    rows = []
    for cost in longest:
        frames = cost.op.frames
        if not frames or COMPILING in frames[0].file:  # XLA added it
            maker = makers.maker(cost.op.name)
            frames = () if maker is None or (maker.frames and COMPILING in maker.frames[0].file) else maker.frames
        result = next(leaves(cost.op.shape))
        shape = f"{result.dtype}[{','.join(map(str, result.dims))}]"
        seconds_each = seconds[cost.op.name]
        rows.append(DeviceCopy(cost.op.name, shape, where(place(frames)), cost.executions, seconds_each))
    return tuple(row for row in rows if row.seconds > 0)


def _pipeline_note(analysis: Analysis) -> tuple[str, ...]:
    plan = analysis.compilation.plan
    if plan.axes.pipe == 1:
        return ()
    return (
        f"pipeline: all {plan.axes.pipe} ranks run one program, so each has buffers for the fullest rank, and "
        "computes without use in ticks in which it is idle; that work is counted",
    )


def load_note(plan: Plan) -> tuple[str, ...]:
    """A note on the load of experts, where they are split: it is data, which a program does not have."""
    if not plan.experts or plan.axes.expert == 1:
        return ()
    return (
        "experts: all ranks are taken to have equal loads, so products are those of an even share of the rows and an "
        "exchange has one round; python -m jaxpar.plan and jaxpar.schedule predict times for parallel.expert_imbalance",
    )


def _kinds_note(analysis: Analysis) -> tuple[str, ...]:
    """A note on which GPU the program and the times are for, in a heterogeneous cluster."""
    kinds = analysis.cluster.gpus
    if len(kinds) == 1:
        return ()
    names = " and ".join(gpu.name for gpu in kinds)
    slowest = analysis.cluster.gpu.name
    return (f"the cluster has {names}: compiled and timed for {slowest}, the slowest; memory is that of the smallest",)


def _time_note(analysis: Analysis) -> tuple[str, ...]:
    """A note on which GPU's parameters the times use, where none were fitted for this GPU."""
    why = None if analysis.hardware is not None else borrowed(analysis.timer.gpu)
    return () if why is None else (f"times: {why}",)


def axis_of(movement: Movement) -> str:
    """Mesh axes joined by `+`, or `host`."""
    return "host" if movement.transfer.channel == "host" else "+".join(movement.axes)


def collective_name(movement: Movement, collective: str | None) -> str:
    """The name of a transfer for people: its collective between devices, or its direction to or from the host."""
    return movement.kind if movement.transfer.channel == "host" else collective or "-"


def _seconds_by_kind(analysis: Analysis) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for cost in analysis.costs:
        if cost.computes:
            seconds[cost.kind] += analysis.kernel_seconds[cost.op.name] * cost.executions
    return dict(seconds)


def _largest(analysis: Analysis, found: list[Occupant]) -> tuple[LiveBuffer, ...]:
    makers = Makers(analysis.module, analysis.buffers.order)
    inputs, classes, rows = analysis.compilation.inputs, analysis.classes, []
    for occupant in found[:LARGEST]:
        number, value = occupant.allocation.parameter, occupant.value
        name = value.op if number is None else inputs[number]
        maker = makers.maker(value.op, value.path) if number is None else None
        frame = place(maker.frames) if maker is not None else None
        shape = value.shape.partition("{")[0]
        rows.append(LiveBuffer(name, occupant.bytes, shape, classes.of(occupant), where(frame)))
    return tuple(rows)


def where(frame: Frame | None) -> str:
    """`file:line` as seen from the root of the project, or of the installed package.

    A cached program may come from another clone of the project.
    """
    return "" if frame is None else f"{_OUTSIDE.sub('', frame.file, count=1)}:{frame.line}"
