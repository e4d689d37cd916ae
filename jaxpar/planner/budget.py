"""Days and costs of a training run against the number of GPUs, the best layout at each (vTrain, arXiv:2312.12391).

Beside them what the same compute would train best: 20 tokens a parameter and 6 FLOPs for each of both (Hoffmann et al.
2022, arXiv:2203.15556).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path

from rich import box
from rich.table import Table

from jaxpar.config import Config, UserError, load_config
from jaxpar.config.counting import parameter_count
from jaxpar.hardware.cluster import Cluster
from jaxpar.planner import words
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.planning import gpu_numbers, planned_config, screen
from jaxpar.planner.search import Planned, Search
from jaxpar.planner.space import Space

DAY = 86400.0
TOKENS_PER_PARAMETER = 20.0
FLOPS = 6.0
"""Of a parameter and token in training."""


@dataclass(frozen=True)
class Cost:
    """One number of GPUs."""

    gpus: int
    mesh: str
    days: float
    price: float
    tokens_per_s: float
    mfu: float


@dataclass(frozen=True)
class Budget:
    """What the user asked for."""

    config: Path
    cluster: str
    tokens: float
    gpus: str
    price: float
    overrides: Sequence[str] = ()
    json: bool = False

    def run(self) -> None:
        """Plan at each number of GPUs, and print. Raises `UserError`."""
        for name in ("tokens", "price"):
            if not getattr(self, name) > 0:
                raise UserError(f"--{name} {getattr(self, name):g}: expected a number above 0")
        low, high = gpu_numbers(self.gpus)
        cluster = named_cluster(self.cluster)
        config = planned_config(load_config(self.config, self.overrides))
        costs = list(self._costs(config, cluster, low, high))
        best = optimal(FLOPS * parameter_count(config.model, padded=False) * self.tokens)
        if self.json:
            print(json.dumps({"costs": [asdict(one) for one in costs], "compute_optimal": best}, indent=2))
            return
        self._print(config, costs, best)

    def _costs(self, config: Config, cluster: Cluster, low: int, high: int) -> Iterator[Cost]:
        each, gpus, nothing = cluster.gpus_per_host, low, True
        while gpus <= high:
            planned = self._plan(config, cluster, gpus)
            if planned is not None:
                nothing = False
                found = planned.found
                rate = found.time.tokens_per_s_per_gpu * gpus
                days = self.tokens / rate / DAY
                mesh = words.axes(found.layout)
                yield Cost(gpus, mesh, days, days * 24 * gpus * self.price, rate, found.time.mfu)
            gpus *= 2
        if nothing:
            raise UserError(
                f"--gpus {self.gpus}: {config.run.name} fits none of these numbers of GPUs in hosts of {each}, with a "
                f"batch of {config.data.batch_size} rows"
            )

    def _plan(self, config: Config, cluster: Cluster, gpus: int) -> Planned | None:
        hosts, rest = divmod(gpus, cluster.gpus_per_host)
        if rest and gpus > cluster.gpus_per_host:
            raise UserError(f"--gpus {gpus}: expected whole hosts of {cluster.gpus_per_host} GPUs")
        group = replace(cluster.groups[0], hosts=max(1, hosts))
        part = replace(cluster, groups=(group,), gpus_per_host=min(gpus, cluster.gpus_per_host))
        search = Search(Space(config, part))
        try:
            return search.best(1)[0]
        except UserError:  # too few GPUs for the model or too many for the batch: the table leaves it out
            return None

    def _print(self, config: Config, costs: Sequence[Cost], best: dict[str, float]) -> None:
        console = screen()
        table = Table(
            title=f"{config.run.name}: {self.tokens:.3g} tokens at {self.price:g} a GPU and hour",
            title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1),
        )  # fmt: skip
        for name in ("GPUs", "days", "cost", "tokens/s", "MFU", "mesh"):
            table.add_column(name, justify="left" if name == "mesh" else "right")
        for one in costs:
            table.add_row(
                f"{one.gpus:,}", f"{one.days:,.1f}", f"{one.price:,.0f}", f"{one.tokens_per_s:,.0f}",
                f"{100 * one.mfu:.1f}%", one.mesh,
            )  # fmt: skip
        console.print(table)
        console.print(
            f"The same compute suits {best['parameters']:.3g} parameters on {best['tokens']:.3g} tokens (20 each).",
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def optimal(flops: float) -> dict[str, float]:
    """Parameters and tokens that so many FLOPs train best."""
    parameters = sqrt(flops / FLOPS / TOKENS_PER_PARAMETER)
    return {"parameters": parameters, "tokens": TOKENS_PER_PARAMETER * parameters}
