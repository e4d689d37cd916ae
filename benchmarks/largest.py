"""The largest model whose step fits one GPU, with its master weights and moments on the device, on the host, in files.

    python -m benchmarks.largest --json largest.json        # one H100 with 80 GB; about 15 minutes

It also tries weights and gradients of layers on the host. Models have the widths of Llama 3 8B and as many layers as
fit. Each is a compile with XLA's GPU compiler (`jaxpar.compiler`, which caches results) of one row of 2048 tokens
under full rematerialisation. It fits if XLA's device memory is within the pool that training has, and its host memory
within 2 TB. All layers take the same memory, so two compiles predict the number, and compiles at it and one above it
confirm it. Nothing runs, so nothing is timed: the seconds are the bytes over the link at full speed in each direction.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command
from jaxpar.compiler.compile import compile_step, plan_for
from jaxpar.compiler.report import Analysis, Report, make_report
from jaxpar.config import Config, load_config
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.memory.state_storage import streamed_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.pages.units import GIB, GIGA, seconds, size

TIERS = {
    "none": ("memory.optimizer_offload=none",),
    "host": ("memory.optimizer_offload=host",),
    "file": ("memory.optimizer_offload=file",),
    "layers": ("memory.optimizer_offload=host", "memory.weights_offload=host"),
}
"""Where things are stored: state on the device, on the host, in files; weights and gradients of layers on the host."""
FIRST, SECOND = 6, 12
"""Layers of the compiles from which the others are predicted."""
HOST_BYTES = 2e12
"""Memory of a large host."""
COMMON = (
    "parallel.replica=1", "parallel.fsdp=1", "parallel.zero=0", "parallel.microbatches=1", "memory.remat=full",
    "data.batch_size=1", "data.sequence_length=2048", "attention.backend=xla",
)  # fmt: skip


def most_layers(needs: Callable[[int], int], usable: int, most: float = inf) -> int:
    """The most layers, up to `most`, for which `needs`, which grows by about as much for each, is at most `usable`; 0
    for none."""
    first, second = needs(FIRST), needs(SECOND)
    each = max(1, (second - first) / (SECOND - FIRST))
    layers = int(min(most, max(1, FIRST + (usable - first) / each)))
    while layers and needs(layers) > usable:
        layers -= 1
    while layers < most and needs(layers + 1) <= usable:
        layers += 1
    return layers


def most_on_the_host(needs: Callable[[int], int], limit: float) -> float:
    """The most layers for which `needs`, which grows by as much for each, is at most `limit`."""
    first, second = needs(FIRST), needs(SECOND)
    return inf if first == second else FIRST + (limit - first) * (SECOND - FIRST) // (second - first)


def measure(config: str, cluster: Cluster, tier: str) -> dict[str, Any]:
    """The deepest model of `config`'s widths under a tier."""
    reports: dict[int, Report] = {}

    def configured(layers: int) -> Config:
        return load_config(Path(config), [*COMMON, f"model.layers={layers}", *TIERS[tier]])

    def needs(layers: int) -> int:
        if layers not in reports:
            analysis = Analysis(compile_step(configured(layers), cluster), cluster)
            reports[layers] = make_report(analysis, Path(config).stem)
            asked, took = size(reports[layers].allocated_bytes, 2), seconds(reports[layers].compile_seconds)
            print(f"{tier}, {layers} layers: {asked} ({took})", file=sys.stderr)
        return reports[layers].allocated_bytes

    needs(FIRST)
    usable = reports[FIRST].device_bytes - reports[FIRST].reserve_bytes
    most = most_on_the_host(lambda layers: needs(layers) and reports[layers].host_bytes, HOST_BYTES)
    layers = most_layers(needs, usable, most)
    row: dict[str, Any] = {"tier": tier, "cluster": cluster.name, "layers": layers, "usable_bytes": usable}
    if not layers:
        return row
    report, chosen = reports[layers], configured(layers)
    there, back = _moved(chosen, cluster)
    return row | {
        "parameters": parameter_count(chosen.model, padded=False),
        "allocated_bytes": report.allocated_bytes,
        "refused_bytes": reports[layers + 1].allocated_bytes if layers < most else None,
        "classes": dict(report.classes),
        "host_bytes": report.host_bytes,
        "disk_bytes": back if tier == "file" else 0,
        "to_device_bytes": there,
        "from_device_bytes": back,
        "link_seconds": max(there, back) / cluster.gpu.host.bandwidth,
    }


def _moved(config: Config, cluster: Cluster) -> tuple[int, int]:
    config, plan = plan_for(config, cluster)
    return streamed_bytes(StepLayout(config, plan))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results for people."""
    lines = [
        f"{'state':8}{'layers':>7}{'parameters':>12}{'device GiB':>12}{'one more':>10}{'host GiB':>10}{'disk GiB':>10}"
        f"{'link s/step':>13}"
    ]
    for row in rows:
        if not row["layers"]:
            lines.append(f"{row['tier']:8}{'none fits':>7}")
            continue
        device, host, disk = (row[name] / GIB for name in ("allocated_bytes", "host_bytes", "disk_bytes"))
        refused = "host full" if row["refused_bytes"] is None else f"{row['refused_bytes'] / GIB:.2f}"
        lines.append(
            f"{row['tier']:8}{row['layers']:7}{row['parameters'] / GIGA:11.2f}B{device:12.2f}{refused:>10}"
            f"{host:10.1f}{disk:10.1f}{row['link_seconds']:13.2f}"
        )
    return "\n".join(lines)


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.largest", __doc__)
    parser.add_argument("--config", default="configs/llama3_8b.yaml", help="the model, whose layers are replaced")
    parser.add_argument("--cluster", default="h100:1x1", help="as for jaxpar.inspect: one GPU")
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS), help="what is stored where")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    cluster = parse_cluster(options.cluster)
    rows = [measure(options.config, cluster, tier) for tier in options.tiers]
    write_json(options.json, rows)
    print(table(rows))


if __name__ == "__main__":
    sys.exit(main())
