"""Days and costs of a training run against the number of GPUs, the best layout at each (vTrain, arXiv:2312.12391).

Beside them it prints the compute-optimal size for the same compute: 20 tokens per parameter and 6 FLOPs per parameter
and token (Hoffmann et al. 2022, arXiv:2203.15556). With a number of days, it prints the same for the compute of each
number of GPUs in that time at the predicted speed, not at the peak, which would suggest a larger model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path

from rich import box
from rich.table import Table

from jaxpar.config import Config, UserError, load_config
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.plan_file import LARGEST_NUMBER
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.planning import gpu_numbers, planned_config, screen
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
from jaxpar.units import count, percent

DAY = 86400.0
TOKENS_PER_PARAMETER = 20.0
FLOPS = 6.0
"""FLOPs per parameter and token in training."""


@dataclass(frozen=True)
class Cost:
    """The results for one number of GPUs."""

    gpus: int
    layout: str
    """The best, in words."""
    days: float
    price: float
    tokens_per_s: float
    mfu: float
    optimal: dict[str, float] | None = None
    """Compute-optimal parameters and tokens for these GPUs in the given days at this speed."""


@dataclass(frozen=True)
class Budget:
    """What the user asked for."""

    config: Path
    cluster: str
    tokens: float
    gpus: str
    price: float
    overrides: Sequence[str] = ()
    days: float | None = None
    json: bool = False

    def run(self) -> None:
        """Plan at each number of GPUs, and print. Raises `UserError`."""
        for name in ("tokens", "price", "days"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= LARGEST_NUMBER:
                raise UserError(f"--{name} {value:g}: expected a number above 0, at most {LARGEST_NUMBER:g}")
        cluster = named_cluster(self.cluster)
        if len(cluster.groups) > 1:
            raise UserError(f"--cluster {self.cluster}: expected hosts of one kind, of which there may be any number")
        numbers = self._numbers(cluster.gpus_per_host)
        config = planned_config(load_config(self.config, self.overrides))
        costs, without = self._costs(config, cluster, numbers)
        best = optimal(FLOPS * parameter_count(config.model, padded=False) * self.tokens)
        if self.json:
            found = {"costs": [asdict(one) for one in costs], "compute_optimal": best, "without_layout": without}
            print(json.dumps(found, indent=2))
            return
        self._print(config, costs, best, without)

    def _numbers(self, each: int) -> list[int]:
        """Numbers of GPUs. Raises `UserError` for one that is not of whole hosts."""
        low, high = gpu_numbers(self.gpus)
        numbers = [low << power for power in range((high // low).bit_length())]
        for gpus in numbers:
            if gpus > each and gpus % each:
                raise UserError(f"--gpus {self.gpus}: {gpus} GPUs are not whole hosts of {each}")
        return numbers

    def _costs(self, config: Config, cluster: Cluster, numbers: Sequence[int]) -> tuple[list[Cost], dict[int, str]]:
        """What each number of GPUs costs; and those that have no layout, with the reason."""
        costs, without = [], {}
        for gpus in numbers:
            try:
                planned = self._plan(config, cluster, gpus)
            except UserError as error:
                without[gpus] = str(error)
                continue
            found = planned.candidate
            rate = found.time.tokens_per_s_per_gpu * gpus
            days = self.tokens / rate / DAY
            buys = None
            if self.days is not None:
                buys = optimal(found.time.mfu * cluster.gpu.training_peak * gpus * self.days * DAY)
            price = days * 24 * gpus * self.price
            costs.append(Cost(gpus, words.whole(found.layout), days, price, rate, found.time.mfu, buys))
        if not costs:
            raise UserError(f"--gpus {self.gpus}: no layout at any of these numbers; {without[numbers[-1]]}")
        return costs, without

    def _plan(self, config: Config, cluster: Cluster, gpus: int) -> Planned:
        each = min(gpus, cluster.gpus_per_host)
        group = replace(cluster.groups[0], hosts=gpus // each)
        part = replace(cluster, name=f"{gpus} GPUs", groups=(group,), gpus_per_host=each)
        return Search(Space(config, part)).best(1)[0]

    def _print(self, config: Config, costs: Sequence[Cost], best: dict[str, float], without: Mapping[int, str]) -> None:
        console = screen()
        table = Table(
            title=f"{config.run.name}: {count(self.tokens)} tokens at {self.price:g} a GPU and hour",
            title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1),
        )  # fmt: skip
        buys = () if self.days is None else (f"best size in {self.days:g} days", "its tokens")
        for name in ("GPUs", "days", "cost", "tokens/s", "MFU", *buys, "layout"):
            table.add_column(name, justify="left" if name == "layout" else "right")
        for one in costs:
            best_size = () if one.optimal is None else (count(one.optimal[name]) for name in ("parameters", "tokens"))
            table.add_row(
                f"{one.gpus:,}", f"{one.days:,.1f}", f"{one.price:,.0f}", f"{one.tokens_per_s:,.0f}",
                percent(one.mfu), *best_size, one.layout,
            )  # fmt: skip
        console.print(table)
        for gpus, reason in without.items():
            console.print(f"{gpus:,} GPUs are left out: {reason}", highlight=False, soft_wrap=True)
        if self.days is not None:
            console.print(
                f"Sizes assume the MFU of {config.run.name}; plan the size that you choose to see its own.",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
        console.print(
            f"The compute of {count(self.tokens)} tokens is optimal for {count(best['parameters'])} parameters on "
            f"{count(best['tokens'])} tokens (20 per parameter).",
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def optimal(flops: float) -> dict[str, float]:
    """Compute-optimal parameters and tokens for so many FLOPs."""
    parameters = sqrt(flops / FLOPS / TOKENS_PER_PARAMETER)
    return {"parameters": parameters, "tokens": TOKENS_PER_PARAMETER * parameters}
