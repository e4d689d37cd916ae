"""What a row of a published run leaves open, and what is assumed for it."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.validation.software import generation
from jaxpar.config.spelling import one_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.power import power_of, speed_at
from jaxpar.planner.machine import CPU
from jaxpar.planner.measured_runs.cells import Cells
from jaxpar.planner.measured_runs.measured_run import MeasuredRun, gpu_of
from jaxpar.planner.measured_runs.table import NETWORK
from jaxpar.units import GIGA

USUAL = {
    "micro_batch_seqs": "the fastest of 1, 2, 4 and 8", "recompute": "selective", "precision": "bf16",
    "zero_stage": "0", "gpus_per_node": "8", "tied_embeddings": "1", "n_kv_heads": "those of n_heads",
    "flash_attention": "what its software has",
}  # fmt: skip
"""The value assumed for an empty cell, where that makes a difference."""

POWER = "gpu_power_w"
"""The column of a GPU's power cap; an empty one is the largest power of such GPUs."""


def left_open(cell: Cells, run: MeasuredRun) -> Iterable[str]:
    """Settings that the row of `run` leaves open, and the value assumed for each."""
    row, layouts, cluster = cell.row, run.layouts, run.cluster
    if generation(row["framework"]) is None:
        yield f"{row['framework'] or 'unnamed software'} is not known, and timed as the mean of known software"
    for column, usual in USUAL.items():
        if not row[column]:
            yield f"{column} {usual}"
    virtual = sorted({one.virtual_stages for one in layouts})
    if not row["vpp"] and layouts[0].pipe > 1:
        yield f"vpp {virtual[0] if len(virtual) == 1 else f'the fastest of {one_of([str(one) for one in virtual])}'}"
    if not row[NETWORK] and cluster.hosts > 1:
        yield f"{NETWORK} {8 * cluster.link(True).bandwidth / GIGA:g}"
    yield from _power(cell, run)
    if not row["n_heads"]:
        yield f"n_heads d_model / {run.model.head_dim}"
    if not row["d_ff"]:
        yield "d_ff 4 x d_model"
    if run.model.experts is not None and not cell.given("imbalance"):
        yield "imbalance 1"
    if row["gpu"] != CPU:
        yield from gpu_of(cell)[1]


def _power(cell: Cells, run: MeasuredRun) -> Iterable[str]:
    """The power cap of a row's GPUs, and how fast they are at it."""
    gpu, cap = run.cluster.gpu, cell.row.get(POWER)
    most = power_of(gpu)
    if most is None:
        return
    if cap:
        speed = speed_at(float(cap), most)
        if speed < 1:
            yield f"{POWER} {float(cap):g} multiplies at {speed:.0%} of {most:g} W, by an assumed curve"
    elif gpu.peaks == gpu_named(gpu.short).peaks:  # not a variant that is known by its name
        yield f"{POWER} {most:g}, its datasheet's"
