"""The report of a compiled step."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

from jaxpar.compiler.program.attribution import source_frame
from jaxpar.compiler.program.costs.ops import KINDS, float8_flops, flops_by_kind, recomputed_flops
from jaxpar.compiler.program.from_program import Overlap
from jaxpar.compiler.program.hlo.records import Frame
from jaxpar.compiler.program.memory.buffers import Occupant, occupants
from jaxpar.compiler.report.analysis import Analysis
from jaxpar.compiler.report.record import Collective, Exposure, LiveBuffer, Report
from jaxpar.config import Config
from jaxpar.cost.hardware_model import borrowed
from jaxpar.hardware.catalogue import GPU, gpu_named
from jaxpar.hardware.memory import pool_bytes
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.model.flops import causal_pairs, flops_per_step, mfu
from jaxpar.pages.units import plural

LARGEST = 10
_OUTSIDE = re.compile(r"^.*/site-packages/|^.*/(?=(?:jaxpar|pallas_kernels)/)")
"""Prefix of a path that the report leaves out."""


def make_report(analysis: Analysis, config: str) -> Report:
    """The report of a compiled step; `config` is the user's name for the configuration."""
    compilation, memory = analysis.compilation, analysis.compilation.memory
    live = occupants(analysis.buffers, analysis.peak[0])
    host = memory.host_argument + memory.host_output - memory.host_alias + memory.host_temp
    classes = {**analysis.classes.totals(live), "host": host}
    device = analysis.cluster.device_bytes
    usable, allocated = pool_bytes(device), memory.total_allocation + analysis.buffers.beside
    # XLA's own peak is that of the fullest memory space, which may be the host's.
    peak_bytes = analysis.peak[1] if memory.host_temp or analysis.buffers.beside else memory.peak
    axes, costs, step = dict(compilation.plan.axes), analysis.costs, analysis.schedule.step
    kernels = {kind: seconds for kind, seconds in step.seconds_by_kind.items() if kind in KINDS}
    repeated = sum(cost.op.name in analysis.counts.repeated_by_xla for cost in costs)
    return Report(
        config=config,
        cluster=compilation.cluster,
        gpu=gpu_named(compilation.gpu).name,
        devices=compilation.plan.axes.devices,
        axes=axes,
        notes=notes(analysis, repeated),
        fits=allocated <= usable,
        device_bytes=device,
        reserve_bytes=device - usable,
        margin_bytes=usable - allocated,
        peak_bytes=peak_bytes,
        allocated_bytes=allocated,
        host_bytes=host,
        classes=classes,
        collectives=collectives(analysis.schedule.overlaps),
        exposures=exposures(analysis.schedule.overlaps),
        flops=sum(flops_by_kind(costs).values()),
        flops_by_kind=flops_by_kind(costs),
        recompute_flops=recomputed_flops(costs),
        float8_flops=float8_flops(costs),
        compiler_recomputes=repeated,
        compute_seconds=step.compute,
        slowed_seconds=analysis.schedule.slowed_seconds,
        exposed_seconds=analysis.schedule.exposed_seconds,
        seconds_by_kind=kernels,
        lost_by_part={part: seconds for part, seconds in step.seconds_by_kind.items() if part not in kernels},
        largest_buffers=_largest(analysis, live),
        compile_seconds=compilation.compile_seconds,
    )


def notes(analysis: Analysis, repeated: int) -> tuple[str, ...]:
    """Differences between this program and the one that will run, and caveats of the numbers.

    Args:
        analysis: the analysed program.
        repeated: number of ops that XLA itself runs again.
    """
    plan, kinds = analysis.compilation.plan, analysis.cluster.gpus
    branches = len(analysis.counts.conditionals)
    lines = [*analysis.compilation.notes, *analysis.module.unknown.notes()]
    if len(kinds) > 1:
        names, slowest = " and ".join(gpu.name for gpu in kinds), analysis.cluster.gpu.name
        lines.append(
            f"the cluster has {names}: compiled and timed for {slowest}, the slowest; memory is that of the smallest"
        )
    if plan.axes.pipe > 1:
        lines.append(
            f"pipeline: all {plan.axes.pipe} ranks run one program, so each has buffers for the fullest rank, and "
            "in its idle ticks computes results that are not used; that work is included"
        )
    if plan.experts and plan.axes.expert > 1:
        lines.append(
            "experts: all ranks are assumed to have equal loads, so products are for an even share of the rows and "
            "an exchange has one round; jaxpar.plan and jaxpar.schedule predict times for parallel.experts.imbalance"
        )
    if analysis.hardware is None and (source := borrowed(analysis.timer.gpu)) is not None:
        lines.append(f"times: {source}")
    if branches:
        lines.append(
            f"{plural(branches, 'conditional')}: every branch is included each time, so work in them is an upper bound"
        )
    if repeated:
        lines.append(
            f"memory was short, so XLA itself runs {repeated} kernels and transfers a second time and overlaps less; "
            "traffic and work include that"
        )
    return tuple(lines)


def with_utilisation(report: Report, config: Config, gpu: GPU) -> Report:
    """`report` with the model FLOPs utilisation of its step, for rows that are one document.

    Args:
        report: report of the compiled step.
        config: its configuration, with the vocabulary set.
        gpu: the GPU that it was compiled for.
    """
    assert config.model.vocab is not None, "the vocabulary is known"
    tokens = config.data.batch_size * config.data.sequence_length
    pairs = causal_pairs(config.model, tokens, config.data.sequence_length)
    flops = flops_per_step(config.model, tokens, pairs, config.model.vocab, adaptation_of(config))
    peaks: dict[str, float] = {gpu.training_dtype: gpu.training_peak}
    peaks |= {"float8": gpu.peaks["float8"]} if report.float8_flops else {}
    shares = {kind: mfu(flops, report.step_seconds, report.devices, peak) for kind, peak in peaks.items()}
    return replace(report, utilisation=shares)


def collectives(overlaps: tuple[Overlap, ...]) -> tuple[Collective, ...]:
    """Transfers summed by axes, collective, kind, dtype and whether they cross nodes. The time of a combined transfer
    is divided among its arrays by bytes."""
    groups: dict[tuple[str, str, str, str, bool], list[tuple[Overlap, float, float]]] = defaultdict(list)
    for overlap in overlaps:
        movement = overlap.movement
        for part in movement.parts:
            name = movement.name_of(part.collective)
            key = movement.axis, name, movement.kind, part.dtype, movement.crosses_nodes
            share = part.sent_bytes / movement.sent_bytes if movement.sent_bytes else 1 / len(movement.parts)
            groups[key].append((overlap, part.sent_bytes * movement.executions, share * movement.executions))
    rows = []
    for key, parts in groups.items():
        total = lambda field, parts=parts: sum(getattr(one.time, field) * times for one, _, times in parts)
        count = sum({one.movement.transfer.start.name: one.movement.executions for one, _, _ in parts}.values())
        sent, seconds = sum(sent for _, sent, _ in parts), total("seconds")
        rows.append(Collective(*key, count, sent, seconds, total("enclosed"), total("exposed")))
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.axis, row.collective, row.dtype)))


def exposures(overlaps: tuple[Overlap, ...]) -> tuple[Exposure, ...]:
    """The transfers with the longest exposed time in a step."""
    waited = [overlap for overlap in overlaps if overlap.exposed_per_step > 0]
    longest = sorted(waited, key=lambda overlap: -overlap.exposed_per_step)[:LARGEST]
    return tuple(
        Exposure(
            axis=one.axis,
            collectives="+".join(map(one.name_of, one.collectives)),
            kind=one.kind,
            source=source_line(one.source),
            count=one.executions,
            synchronous=one.transfer.synchronous,
            seconds=time.seconds,
            enclosed_s=time.enclosed,
            exposed_s=time.exposed,
        )
        for one, time in ((overlap.movement, overlap.time) for overlap in longest)
    )


def _largest(analysis: Analysis, live: list[Occupant]) -> tuple[LiveBuffer, ...]:
    classes, rows = analysis.classes, []
    for occupant in live[:LARGEST]:
        parameter, value, name, frames = occupant.allocation.parameter, occupant.value, occupant.value.op, ()
        if parameter is not None:
            name = analysis.compilation.inputs[parameter]
        elif (producer := classes.provenance.producer(value.op, value.path)) is not None:
            frames = producer.frames
        shape = value.shape.partition("{")[0]
        rows.append(
            LiveBuffer(name, occupant.bytes, shape, classes.class_of(occupant), source_line(source_frame(frames)))
        )
    return tuple(rows)


def source_line(frame: Frame | None) -> str:
    """`file:line` relative to the project or the installed package; a cached program may come from another clone."""
    return "" if frame is None else f"{_OUTSIDE.sub('', frame.file, count=1)}:{frame.line}"
