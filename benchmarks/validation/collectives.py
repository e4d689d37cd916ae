"""Published collectives of nccl-tests, measured alone, beside those of the model of links (`cost/messages.py`).

Bus bandwidth is what nccl-tests prints: a message's bytes times (n - 1) / n over its seconds, twice that for an
all-reduce. For a ring of all ranks it is what each link carries, or all cards of a host together.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.validation.cells import Cells
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import join_or, quoted
from jaxpar.cost.hardware_model import HardwareModel, hardware_of
from jaxpar.cost.messages import Ring, network_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.pages.units import GIB, GIGA, MIB, MICRO, percent

MEASURED = Path(__file__).parent / "data" / "collectives.csv"
LARGE = 8.0 * GIB
"""Bytes of a message whose size was not stated: that of the largest, in the ranges that were."""
COLUMNS = (
    "citation", "collective", "gpu", "hosts", "ranks", "network_gb_s", "size_bytes", "time_us", "bus_bandwidth_gb_s",
    "notes",
)  # fmt: skip
SECONDS: Mapping[str, Callable[[Ring, float], float]] = {
    "all_reduce": Ring.reduce, "all_gather": Ring.gather, "reduce_scatter": Ring.gather,
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A row of the file."""

    citation: str
    collective: str
    """A key of `SECONDS`."""
    gpu: str
    hosts: int
    ranks: int
    network: float | None
    """Line rate of all cards of a host in one direction, bytes per second; None for one host."""
    size: float
    """Bytes of the message; `LARGE` where it was not stated."""
    bandwidth: float
    """Bus bandwidth, bytes per second."""

    @property
    def seconds(self) -> float:
        """Of the message, from its bus bandwidth."""
        return self._moved / self.bandwidth

    def predicted(self, model: HardwareModel | None = None) -> float:
        """Bus bandwidth by the model of links."""
        per_host = -(-self.ranks // self.hosts)
        cluster = parse_cluster(f"{self.gpu}:{self.hosts}x{max(8, per_host)}")
        links = network_of(cluster, hardware_of(cluster.gpu) if model is None else model)
        if self.network is not None:
            links = replace(links, outside=self.network / links.per_host)
        return self._moved / SECONDS[self.collective](links.group(self.ranks, per_host), self.size)

    def error(self, model: HardwareModel | None = None) -> float:
        """Predicted over measured seconds, less one: above 0 where the message was faster than predicted."""
        return self.bandwidth / self.predicted(model) - 1

    @property
    def _moved(self) -> float:
        return (2 if self.collective == "all_reduce" else 1) * self.size * (self.ranks - 1) / self.ranks


def read_collectives(file: Path = MEASURED) -> list[Measured]:
    """The rows of a file.

    Raises:
        UserError: a column is missing, a cell is no number, or a time does not fit its bandwidth.
    """
    with file.open(newline="") as stream:
        reader = csv.DictReader(line for line in stream if not line.startswith("#"))
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise UserError(f"{file.name}: column {quoted(missing[0])} is missing; expected {', '.join(COLUMNS)}")
        return [_read(Cells(row, f"{file.name}: row {number}")) for number, row in enumerate(reader, 1)]


def _read(cell: Cells) -> Measured:
    row = cell.row
    if None in row or None in row.values():
        raise UserError(f"{cell.place}: expected as many cells as columns")
    if row["collective"] not in SECONDS:
        raise UserError(f"{cell.place}: collective: expected {join_or(SECONDS)}, got {quoted(row['collective'])}")
    hosts = cell.whole("hosts")
    found = Measured(
        row["citation"], row["collective"], row["gpu"], hosts, cell.whole("ranks", least=2),
        GIGA * cell.positive("network_gb_s") if hosts > 1 else None,
        cell.positive("size_bytes") if cell.given("size_bytes") else LARGE, GIGA * cell.positive("bus_bandwidth_gb_s"),
    )  # fmt: skip
    if cell.given("time_us") and not 0.98 < cell.positive("time_us") * MICRO / found.seconds < 1.02:
        raise UserError(
            f"{cell.place}: time_us: {row['time_us']} us does not fit bus_bandwidth_gb_s {row['bus_bandwidth_gb_s']}; "
            f"expected {found.seconds / MICRO:.4g} us"
        )
    return found


def collectives_table() -> list[str]:
    """All-reduces inside a host, measured and predicted, by GPU and ranks; messages above 16 MiB and smaller ones."""
    lines = ["| GPU | ranks | to 16 MiB: median | worst | above: median | worst |", "|---|---|---|---|---|---|"]
    inside = [one for one in read_collectives() if one.hosts == 1 and one.size != LARGE]
    for gpu, ranks in dict.fromkeys((one.gpu, one.ranks) for one in inside):
        own = [one for one in inside if (one.gpu, one.ranks) == (gpu, ranks)]
        small = [one.error() for one in own if one.size <= 16 * MIB]
        large = [one.error() for one in own if one.size > 16 * MIB]
        cells = (f"{percent(median(map(abs, part)))} | {100 * max(part, key=abs):+.1f}%" for part in (small, large))
        lines.append(f"| {gpu_named(gpu).name} | {ranks} | {' | '.join(cells)} |")
    return lines
