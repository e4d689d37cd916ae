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
from jaxpar.hardware.power import capped, power_of
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.plan_file import LARGEST_NUMBER
from jaxpar.planner.failures import GPU_HOURS, HOUR, RESTART_MINUTES, START_UP, reliability
from jaxpar.planner.planning import best_on, gpu_numbers, hosts_of_one_kind, planned_config, screen
from jaxpar.planner.prices import Prices, read_prices
from jaxpar.planner.report import words
from jaxpar.planner.search.candidate import Planned
from jaxpar.units import count, percent, seconds

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
    days_interval: tuple[float, float] | None = None
    """Days in four of five cases; None on CPUs."""
    failures: dict[str, float] | None = None
    """`mtbf_hours`, `save_seconds`, `checkpoint_minutes`, `training_share`, and `days` and `price` with them."""
    kwh: float | None = None
    """Energy of the GPUs alone at their largest power, failures included; None where that is not known."""
    kwh_per_million_tokens: float | None = None
    price_per_million_tokens: float | None = None
    """Failures included."""


@dataclass(frozen=True)
class Budget:
    """What the user asked for."""

    config: Path
    cluster: str
    tokens: float
    gpus: str
    price: str
    overrides: Sequence[str] = ()
    days: float | None = None
    json: bool = False
    mtbf: float = GPU_HOURS
    restart: float = RESTART_MINUTES
    power_cap: float | None = None

    def run(self) -> None:
        """Plan at each number of GPUs, and print. Raises `UserError`."""
        for name in ("tokens", "days", "mtbf", "restart", "power_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= LARGEST_NUMBER:
                raise UserError(
                    f"--{name.replace('_', '-')} {value:g}: expected a number above 0, at most {LARGEST_NUMBER:g}"
                )
        cluster = hosts_of_one_kind(self.cluster)
        prices = read_prices(self.price, cluster.gpu)
        cluster = self._capped(cluster)
        numbers = self._numbers(cluster.gpus_per_host)
        config = planned_config(load_config(self.config, self.overrides))
        costs, without = self._costs(config, cluster, numbers, prices)
        best = optimal(FLOPS * parameter_count(config.model, padded=False) * self.tokens)
        if self.json:
            found = {"costs": [asdict(one) for one in costs], "compute_optimal": best, "without_layout": without}
            print(json.dumps(found, indent=2))
            return
        self._print(config, costs, best, without, prices)

    def _capped(self, cluster: Cluster) -> Cluster:
        """The cluster with GPUs at the power cap. Raises `UserError` where no curve is known."""
        if self.power_cap is None:
            return cluster
        group = cluster.groups[0]
        most = power_of(group.gpu)
        if most is None or not 0.3 * most <= self.power_cap <= most:
            known = "one of the catalogue" if most is None else f"from {0.3 * most:g} to {most:g} W"
            raise UserError(f"--power-cap {self.power_cap:g}: expected for {group.gpu.name} {known}")
        return replace(cluster, groups=(replace(group, gpu=capped(group.gpu, self.power_cap)),))

    def _numbers(self, each: int) -> list[int]:
        """Numbers of GPUs. Raises `UserError` for one that is not of whole hosts."""
        low, high = gpu_numbers(self.gpus)
        numbers = [low << power for power in range((high // low).bit_length())]
        for gpus in numbers:
            if gpus > each and gpus % each:
                raise UserError(f"--gpus {self.gpus}: {gpus} GPUs are not whole hosts of {each}")
        return numbers

    def _costs(
        self, config: Config, cluster: Cluster, numbers: Sequence[int], prices: Prices
    ) -> tuple[list[Cost], dict[int, str]]:
        """What each number of GPUs costs; and those that have no layout, with the reason."""
        costs, without = [], {}
        for gpus in numbers:
            try:
                planned = best_on(config, cluster, gpus)
            except UserError as error:
                without[gpus] = str(error)
                continue
            found = planned.candidate
            rate = found.time.tokens_per_s_per_gpu * gpus
            days = self.tokens / rate / DAY
            buys = None
            if self.days is not None:
                buys = optimal(found.time.mfu * cluster.gpu.training_peak * gpus * self.days * DAY)
            price = prices.of(days * 24 * gpus, self._kwh(days, gpus, cluster))
            cost = Cost(gpus, words.whole(found.layout), days, price, rate, found.time.mfu, buys)
            costs.append(self._in_all(cost, planned, cluster))
        if not costs:
            raise UserError(f"--gpus {self.gpus}: no layout at any of these numbers; {without[numbers[-1]]}")
        return costs, without

    def _in_all(self, cost: Cost, planned: Planned, cluster: Cluster) -> Cost:
        """The same with failures, energy and the interval of the time."""
        parameters = parameter_count(planned.config.model, padded=False)
        lost = reliability(cost.gpus, parameters, self.mtbf, self.restart)
        days, price = cost.days / lost.share, cost.price / lost.share
        kwh = self._kwh(days, cost.gpus, cluster)
        low, high = (1.0, 1.0) if planned.spread is None else planned.spread.interval(1.0)
        return replace(
            cost,
            days_interval=None if planned.spread is None else (low * days, high * days),
            failures={
                "mtbf_hours": lost.between / HOUR, "save_seconds": lost.save, "checkpoint_minutes": lost.every / 60,
                "training_share": lost.share, "days": days, "price": price,
            },
            kwh=kwh,
            kwh_per_million_tokens=None if kwh is None else kwh / self.tokens * 1e6,
            price_per_million_tokens=price / self.tokens * 1e6,
        )  # fmt: skip

    def _kwh(self, days: float, gpus: int, cluster: Cluster) -> float | None:
        """Energy of the GPUs alone at their largest power; None where that is not known."""
        watts = self.power_cap or power_of(cluster.gpu)
        return None if watts is None else watts / 1000 * gpus * days * 24

    def _print(
        self, config: Config, costs: Sequence[Cost], best: dict[str, float], without: Mapping[int, str], prices: Prices
    ) -> None:
        console = screen()
        table = Table(
            title=f"{config.run.name}: {count(self.tokens)} tokens, {prices.words}",
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
        console.print(self._failures(costs))
        console.print(
            f"A GPU is interrupted every {self.mtbf:,.0f} hours (Llama 3's by default: 419 in 54 days on 16,384), "
            f"starts again in {self.restart:g} minutes (assumed) and {START_UP * 1e4:.0f} s for every 10,000 GPUs "
            "(NCCL in arXiv:2510.20171), and saves 0.12 GB/s (2 TB/s for 16,384); checkpoints are at the interval that "
            "loses least (Young, Daly). Energy is of the GPUs alone, at their largest power.",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
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

    def _failures(self, costs: Sequence[Cost]) -> Table:
        """What failures add."""
        table = Table(title="With failures", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        heads = (
            "GPUs",
            "interrupted every",
            "save every",
            "trains",
            "days",
            "80%",
            "cost",
            "per million tokens",
            "kWh",
        )
        for name in heads:
            table.add_column(name, justify="right")
        for one in costs:
            assert one.failures is not None
            lost = one.failures
            between = "-" if one.days_interval is None else "{:,.1f} to {:,.1f}".format(*one.days_interval)
            table.add_row(
                f"{one.gpus:,}", seconds(HOUR * lost["mtbf_hours"]), seconds(60 * lost["checkpoint_minutes"]),
                percent(lost["training_share"]), f"{lost['days']:,.1f}", between, f"{lost['price']:,.0f}",
                f"{one.price_per_million_tokens:.3g}", "-" if one.kwh is None else f"{one.kwh:,.0f}",
            )  # fmt: skip
        return table


def optimal(flops: float) -> dict[str, float]:
    """Compute-optimal parameters and tokens for so many FLOPs."""
    parameters = sqrt(flops / FLOPS / TOKENS_PER_PARAMETER)
    return {"parameters": parameters, "tokens": TOKENS_PER_PARAMETER * parameters}
