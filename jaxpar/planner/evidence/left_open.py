"""What a row of a published run leaves open, and what is assumed for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxpar.config.spelling import one_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.power import power_of, speed_at
from jaxpar.planner.evidence.software import generation
from jaxpar.planner.layout import Layout
from jaxpar.units import GIGA

USUAL = {
    "micro_batch_seqs": "the fastest of 1, 2, 4 and 8", "recompute": "selective", "precision": "bf16",
    "zero_stage": "0", "gpus_per_node": "8", "tied_embeddings": "1", "n_kv_heads": "those of n_heads",
    "flash_attention": "what its software has",
}  # fmt: skip
"""The value assumed for an empty cell, where that makes a difference."""

NETWORK = "inter_node_gbps_per_gpu"
"""The column of a GPU's share of the network between hosts; an empty one is the usual share of such GPUs."""

POWER = "gpu_power_w"
"""The column of a GPU's power cap; an empty one is the largest power of such GPUs."""


def left_open(row: Mapping[str, str], cluster: Cluster, layouts: Sequence[Layout]) -> Iterable[str]:
    """What `row` leaves open, and the value assumed for it; `layouts` are those that it may have had."""
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
    yield from _power(row, cluster)


def _power(row: Mapping[str, str], cluster: Cluster) -> Iterable[str]:
    """The power cap of a row's GPUs, and how fast they are at it."""
    most, given = power_of(cluster.gpu), row.get(POWER)
    if most is None:
        return
    if given:
        speed = speed_at(float(given), most)
        if speed < 1:
            yield f"{POWER} {float(given):g} multiplies at {speed:.0%} of {most:g} W, by an assumed curve"
    elif cluster.gpu.peaks == gpu_named(cluster.gpu.short).peaks:  # not a variant that is known by its name
        yield f"{POWER} {most:g}, its datasheet's"
