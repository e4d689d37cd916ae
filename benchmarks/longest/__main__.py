"""The longest row that fits, found by compiling the training step for clusters that need not be present.

    python -m benchmarks.longest --json longest.json                  # 8B on 1, 8 and 32 H100s; about 15 minutes

Each length is a compile with XLA's GPU compiler (`jaxpar.compiler`, which remembers results), of one row for each data
rank, under full rematerialisation with the layers' inputs, the master weights and the moments in the host's memory, and
tiles of the loss and the MLP as the plan chooses them. It fits if what XLA asks of the device goes into the pool that
training has. Lengths double from a guess, then are bisected to 10%. A later layout is searched only if it fits the
shortest row that the best one so far does not. Where not even the shortest row fits, the smaller configuration is used
instead. Nothing runs, so nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.longest.search import furthest
from benchmarks.results import add_json_file, write_json
from jaxpar.cli import Parser, command
from jaxpar.compiler.compile import compile_step, plan_for
from jaxpar.compiler.report import Analysis, Report, make_report
from jaxpar.config import Config, UserError, load_config
from jaxpar.hardware.cluster import Cluster, parse_cluster
from jaxpar.pages.units import GIB, seconds, size

CLUSTERS = ("h100:1x1", "h100:1x8", "h100:4x8")
SHARDS = ((1, 1), (1, 4), (2, 1))
"""Sizes of fsdp and tensor; context gets the other GPUs. Weights and gradients are sharded over fsdp and context."""
START, LEAST = 1 << 17, 1 << 13
"""Tokens per GPU at which the search begins, and tokens that must fit for it to begin at all."""
BLOCK = 512
"""Tokens of a block of attention, of which each part of a row gets a whole number."""
HOST_BYTES = 2e12
"""Memory of a large host."""
PUBLISHED = {1: "500k", 8: "3.7M", 32: "15M"}
"""ALST's lengths by GPUs, for Llama 8B (arXiv:2506.13996)."""
COMMON = (
    "parallel.replica=1",
    "parallel.microbatches=1",
    "memory.remat={preset: full, layer_input: offload}",
    "memory.optimizer_offload=host",
    "attention.backend=xla",
)


@dataclass(frozen=True)
class Layout:
    """How the GPUs of a cluster share rows and weights."""

    fsdp: int
    context: int
    tensor: int
    strategy: str

    @property
    def name(self) -> str:
        """Axes above 1, and the strategy where there is something to choose."""
        sizes = {"fsdp": self.fsdp, "context": self.context, "tensor": self.tensor}
        axes = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one GPU"
        return axes + (f", {self.strategy}" if self.context > 1 else "")

    @property
    def step(self) -> int:
        """Tokens of which a row is a multiple: two chunks of whole blocks on each rank."""
        return 2 * BLOCK * self.context * self.tensor

    def overrides(self, length: int) -> list[str]:
        """Overrides for one row of `length` on each data rank."""
        axes = [f"parallel.{axis}={getattr(self, axis)}" for axis in ("fsdp", "context", "tensor")]
        return [*COMMON, *axes, f"parallel.context_strategy={self.strategy}", f"data.batch_size={self.fsdp}",
                f"data.sequence_length={length}"]  # fmt: skip


def layouts(cluster: Cluster) -> list[Layout]:
    """Those that are tried: each of `SHARDS` inside a host, with every strategy for the first and Ulysses, which holds
    least, for the others."""
    found = []
    for fsdp, tensor in SHARDS if cluster.devices > 1 else ((1, 1),):
        if cluster.gpus_per_host % (fsdp * tensor) or cluster.devices % (fsdp * tensor):
            continue
        context = cluster.devices // (fsdp * tensor)
        if context == 1:
            strategies = ["allgather"]
        elif (fsdp, tensor) == SHARDS[0]:
            strategies = ["ring", "ulysses", "usp"] if context > 2 else ["ring", "ulysses"]
        else:
            strategies = ["ulysses"]
        found += [Layout(fsdp, context, tensor, strategy) for strategy in strategies]
    return found


@dataclass
class Measurements:
    """Reports of compiled steps of one configuration on one cluster, each compiled once."""

    config: str
    cluster: Cluster
    reports: dict[tuple[Layout, int], Report] = field(default_factory=dict)
    refusals: dict[Layout, str] = field(default_factory=dict)
    """Layouts that the configuration cannot use, and why."""

    def fits(self, layout: Layout, length: int) -> bool:
        """Whether a row of `length` fits; prints the result."""
        try:
            plan_for(self._config(layout, length), self.cluster)
        except UserError as error:
            self.refusals[layout] = str(error)
            return False
        if (layout, length) in self.reports:
            return self.reports[layout, length].fits
        report = self.report(layout, length)
        verdict = "fits" if report.fits else "does not fit"
        what = f"{Path(self.config).stem} on {self.cluster.name}, {layout.name}, {length:,} tokens"
        print(f"{what}: {size(report.allocated_bytes)}, {verdict} ({seconds(report.compile_seconds)})", file=sys.stderr)
        return report.fits

    def report(self, layout: Layout, length: int) -> Report:
        """Of the compiled step."""
        if (layout, length) not in self.reports:
            analysis = Analysis(compile_step(self._config(layout, length), self.cluster), self.cluster)
            self.reports[layout, length] = make_report(analysis, Path(self.config).stem)
        return self.reports[layout, length]

    def _config(self, layout: Layout, length: int) -> Config:
        return load_config(Path(self.config), layout.overrides(length))


def measure(config: str, cluster: Cluster) -> dict[str, Any]:
    """The longest row of `config` on `cluster`, its layout, and the memory of the layouts that were skipped."""
    measured = Measurements(config, cluster)
    candidates = {
        layout: (lambda length, layout=layout: measured.fits(layout, length), layout.step)
        for layout in layouts(cluster)
    }
    best = furthest(candidates, start=START * cluster.devices, least=LEAST)
    others = []
    for layout in candidates:
        lengths = [length for tried, length in measured.reports if tried == layout]
        refused = [length for length in lengths if not measured.reports[layout, length].fits]
        if best is not None and layout == best[0]:
            continue
        if layout in measured.refusals:
            others.append({"layout": layout.name, "why": measured.refusals[layout]})
        elif refused:
            others.append({"layout": layout.name, "length": min(refused), **_memory(measured, layout, min(refused))})
    row = {"config": config, "cluster": cluster.name, "gpus": cluster.devices, "others": others}
    if best is None:
        return row
    layout, end = best
    memory = _memory(measured, layout, end.fits)
    return row | {"layout": layout.name, "rows": layout.fsdp, "length": end.fits, "refused": end.refused, **memory}


def _memory(measured: Measurements, layout: Layout, length: int) -> dict[str, Any]:
    """Bytes of a GPU in a compiled step, and of its host."""
    report = measured.reports[layout, length]
    classes = {name: size for name, size in report.classes.items() if name != "host"}
    return {
        "allocated_bytes": report.allocated_bytes,
        "usable_bytes": report.device_bytes - report.reserve_bytes,
        "gpu_host_bytes": report.host_bytes,
        "host_bytes": report.host_bytes * measured.cluster.gpus_per_host,
        "classes": classes,
        "limit": max(classes, key=lambda name: classes[name]),
        "largest_buffers": [vars(buffer) for buffer in report.largest_buffers],
        "recomputed_by_xla": report.compiler_recomputes,
    }


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.longest", __doc__)
    parser.add_argument("--config", default="configs/llama3_8b.yaml", help="the model")
    parser.add_argument("--smaller", default="configs/llama3_1b.yaml", help="where no row of the former fits")
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS), help="as for jaxpar.inspect")
    add_json_file(parser)
    options = parser.parse_args(arguments)
    rows = []
    for cluster in map(parse_cluster, options.clusters):
        rows.append(measure(options.config, cluster))
        if "length" not in rows[-1] and options.smaller != options.config:
            rows.append(measure(options.smaller, cluster))
    write_json(options.json, rows)
    print(table(rows))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results for people."""
    lines = [
        f"{'GPUs':>4}  {'model':12}{'layout':34}{'longest':>12}{'asks GiB':>10}{'host GiB':>10}  "
        f"{'limited by':30}{'ALST, 8B':>9}"
    ]
    notes = []
    for row in rows:
        model, published = Path(row["config"]).stem, PUBLISHED.get(row["gpus"], "-")
        named = f"{row['gpus']:4}  {model:12}"
        if "length" in row:
            held, state = row["classes"][row["limit"]], row["classes"]["optimizer"]
            limit = f"{_word(row['limit'])} {size(held)}" + (f" (state {size(state)})" if held != state else "")
            lines.append(
                f"{named}{row['layout']:34}{row['length']:12,}{row['allocated_bytes'] / GIB:10.1f}"
                f"{row['gpu_host_bytes'] / GIB:10.1f}  {limit:30}{published:>9}"
            )
            if row["host_bytes"] > HOST_BYTES:
                notes.append(f"{row['cluster']}: {size(row['host_bytes'])} in each host, more than 2 TB")
        else:
            lines.append(f"{named}{'none of those tried fits':34}{'-':>12}{'':20}  {'':30}{published:>9}")
        for other in row["others"]:
            why = other.get("why") or (
                f"{size(other['allocated_bytes'])} of {size(other['usable_bytes'])} at {other['length']:,} tokens, "
                f"most of it {_word(other['limit'])} ({size(other['classes'][other['limit']])})"
            )
            notes.append(f"{row['cluster']} {model} {other['layout']}: {why}")
    return "\n".join([*lines, "", *notes])


def _word(memory_class: str) -> str:
    return memory_class.replace("_", " ")


if __name__ == "__main__":
    sys.exit(main())
