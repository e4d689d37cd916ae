"""Days and costs of a training run against the number of GPUs, the best layout at each (vTrain, arXiv:2312.12391).

Beside them it prints the compute-optimal size for the same compute: 20 tokens per parameter and 6 FLOPs per parameter
and token (Hoffmann et al. 2022, arXiv:2203.15556). With a number of days, it prints the same for the compute of each
number of GPUs in that time at the predicted speed, not at the peak, which would suggest a larger model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Annotated

from rich.console import Console

from jaxpar.compiler.cluster_parts import part_of
from jaxpar.compiler.report.screen import print_lines, screen, table
from jaxpar.config import Config, UserError, load_config
from jaxpar.config.spelling import quoted
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.power import capped, power_of
from jaxpar.hardware.sources import chosen, cited
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.plan_file import LARGEST_NUMBER
from jaxpar.pages.units import count, percent, seconds
from jaxpar.planner.failures import (
    ENOUGH,
    GPU_HOURS,
    HARDWARE,
    HOST_COPY,
    HOUR,
    MEETING,
    REPAIR_HOURS,
    RESTART_MINUTES,
    START_UP,
    STRAGGLERS,
    reliability,
    spare_hosts,
    state_per_parameter,
    straggling,
)
from jaxpar.planner.planning import hosts_of_one_kind, planned_config
from jaxpar.planner.report import words
from jaxpar.planner.search.islands import search_of

MOST_STRAGGLERS: Annotated[float, chosen("a limit of --stragglers")] = 0.9
"""Largest share of the time that may be given as lost to stragglers; ByteDance's worst hundredth of jobs lost 45%."""
DAY = 24 * HOUR
TOKENS_PER_PARAMETER: Annotated[float, cited("Chinchilla, arXiv:2203.15556, table 3")] = 20.0
"""Tokens that a model of the size for a time budget is trained on, for each parameter."""
FLOPS: Annotated[float, cited("arXiv:2001.08361, section 2.1")] = 6.0
"""FLOPs per parameter and token in training."""
ISLANDS_NOTE = (
    "Islands send their messages over the network of these hosts: no slower link is priced. They are another "
    "algorithm, with another loss than as many tokens without islands (docs/islands.md)."
)


@dataclass(frozen=True)
class Cost:
    """The results for one number of GPUs."""

    gpus: int
    layout: str
    """The best, in words."""
    days: float
    """Days of steps as predicted, as are `price`, `tokens_per_s` and `mfu`."""
    price: float
    tokens_per_s: float
    mfu: float
    stragglers: dict[str, float]
    """`share` of the time that is lost to stragglers in all, the share that the predicted step has (`in_step`), and the
    `days` and `price` that the rest adds."""
    failures: dict[str, float]
    """`mtbf_hours`, `stall_seconds` and `save_seconds` of a checkpoint, `start_seconds`, `checkpoint_minutes`,
    `training_share`, and `days` and `price` with failures alone."""
    total: dict[str, float]
    """`days` and `price` with stragglers and failures."""
    spares: dict[str, float]
    """Spare `hosts` that wait for failures, and the `price` that they add to the total."""
    optimal: dict[str, float] | None
    """Compute-optimal parameters and tokens for these GPUs in the given days at this speed."""
    days_interval: tuple[float, float] | None
    """Days in all in four of five cases; None on CPUs."""
    steps_interval: tuple[float, float] | None
    """The same of `days`, of steps alone."""
    kwh: float | None
    """Energy in all of the GPUs alone at their largest power; None where that is not known."""
    price_per_million_tokens: float
    """Price of the run per million tokens, with stragglers and failures, in the currency of the prices."""


@dataclass(frozen=True)
class Budget:
    """The user's options."""

    config: Path
    cluster: str
    tokens: float
    gpus: str
    price: float
    """Price of a GPU-hour, in any currency."""
    overrides: Sequence[str] = ()
    days: float | None = None
    """A time budget, for compute-optimal sizes."""
    json: bool = False
    mtbf: float = GPU_HOURS
    """Hours of one GPU between interruptions."""
    restart: float = RESTART_MINUTES
    """Minutes from an interruption to the first step, without the start of communicators."""
    stragglers: float = STRAGGLERS
    """Share of the time that is lost to them."""
    power_cap: float | None = None
    """Watts of a GPU."""

    def run(self) -> None:
        """Plan at each number of GPUs, and print. Raises `UserError`."""
        for name in ("tokens", "price", "days", "mtbf", "restart", "power_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= LARGEST_NUMBER:
                raise UserError(
                    f"--{name.replace('_', '-')} {value:g}: expected a number above 0, at most {LARGEST_NUMBER:g}"
                )
        if not 0 <= self.stragglers <= MOST_STRAGGLERS:
            what = f"expected the share of the time that stragglers take, from 0 to {MOST_STRAGGLERS:g}"
            raise UserError(f"--stragglers {self.stragglers:g}: {what}")
        cluster = self._capped(hosts_of_one_kind(self.cluster))
        numbers = self._numbers(cluster.gpus_per_host)
        config = load_config(self.config, self.overrides)
        config = planned_config(config)
        costs, without = self._costs(config, cluster, numbers)
        best = optimal(FLOPS * parameter_count(config.model, padded=False) * self.tokens)
        if self.json:
            report = {"costs": [asdict(one) for one in costs], "compute_optimal": best, "without_layout": without}
            print(json_text(report, indent=2))
            return
        self._print(config.run.name, costs, best, without, screen())

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
        ends = re.fullmatch(r"([0-9]{1,7}):([0-9]{1,7})", self.gpus)
        low, high = (0, 0) if ends is None else map(int, ends.groups())
        if not 0 < low <= high:
            asked = f"--gpus {quoted(self.gpus)}: expected two numbers of GPUs, the smaller first, as in 128:2048"
            raise UserError(asked)
        numbers = [low << power for power in range((high // low).bit_length())]
        for gpus in numbers:
            if gpus > each and gpus % each:
                raise UserError(f"--gpus {self.gpus}: {gpus} GPUs are not whole hosts of {each}")
        return numbers

    def _costs(self, config: Config, cluster: Cluster, numbers: Sequence[int]) -> tuple[list[Cost], dict[int, str]]:
        """The cost of each number of GPUs; and those that have no layout, with the reason."""
        costs, without = [], {}
        for gpus in numbers:
            try:
                costs.append(self._cost(config, cluster, gpus))
            except UserError as error:
                without[gpus] = str(error)
        if not costs:
            raise UserError(f"--gpus {self.gpus}: no layout at any of these numbers; {without[numbers[-1]]}")
        return costs, without

    def _cost(self, config: Config, cluster: Cluster, gpus: int) -> Cost:
        """On so many GPUs. Raises `UserError` where no layout fits."""
        planned = search_of(config, part_of(cluster, gpus)).best(1)[0]
        time, spread = planned.candidate.time, planned.spread
        parameters, state = parameter_count(planned.config.model, padded=False), state_per_parameter(config)
        lost = reliability(gpus, parameters, self.mtbf, self.restart, state)
        spares = spare_hosts(gpus, self.mtbf)
        waiting = time.breakdown["stragglers"] / time.seconds
        slower = straggling(self.stragglers, waiting)
        days = self.tokens / (time.tokens_per_s_per_gpu * gpus) / DAY
        in_all, watts = days * slower / lost.share, self.power_cap or power_of(cluster.gpu)
        price_of = lambda days: self.price * 24 * days * gpus
        priced = lambda days: {"days": days, "price": price_of(days)}
        interval = lambda days: None if spread is None else spread.interval(days)
        return Cost(
            gpus, words.in_one_line(planned.candidate.layout), **priced(days),
            tokens_per_s=time.tokens_per_s_per_gpu * gpus, mfu=time.mfu,
            stragglers={"share": max(self.stragglers, waiting), "in_step": waiting} | priced(days * (slower - 1)),
            failures={
                "mtbf_hours": lost.between / HOUR, "stall_seconds": lost.stall, "save_seconds": lost.save,
                "start_seconds": lost.start, "checkpoint_minutes": lost.every / 60, "training_share": lost.share,
            } | priced(days / lost.share),
            total=priced(in_all),
            spares={"hosts": spares, "price": price_of(in_all) * spares * cluster.gpus_per_host / gpus},
            optimal=None
            if self.days is None
            else optimal(time.mfu * cluster.gpu.training_peak * gpus * self.days * DAY),
            days_interval=interval(in_all), steps_interval=interval(days),
            kwh=None if watts is None else watts / 1000 * gpus * in_all * 24,
            price_per_million_tokens=price_of(in_all) / self.tokens * 1e6,
        )  # fmt: skip

    def _print(
        self, name: str, costs: Sequence[Cost], best: Mapping[str, float], without: Mapping[int, str], console: Console
    ) -> None:
        """The tables, and where their numbers are from."""
        buys = () if self.days is None else (f"best size in {self.days:g} days", "its tokens")
        steps = table(
            ("GPUs", "days", words.INTERVAL, "cost", "tokens/s", "MFU", *buys, "layout"), ("layout",),
            f"{name}: {count(self.tokens)} tokens, {self.price:g} a GPU-hour",
        )  # fmt: skip
        in_all = table(
            ("GPUs", "stragglers", "interrupted every", "starts in", "save every", "stall", "trains", "days",
             words.INTERVAL, "cost", "per million tokens", "kWh", "spare hosts"), (), "With stragglers and failures",
        )  # fmt: skip
        between = lambda days: "-" if days is None else "{:,.1f} to {:,.1f}".format(*days)
        for one in costs:
            sizes = () if one.optimal is None else map(count, one.optimal.values())
            steps.add_row(
                f"{one.gpus:,}", f"{one.days:,.1f}", between(one.steps_interval), f"{one.price:,.0f}",
                f"{one.tokens_per_s:,.0f}", percent(one.mfu), *sizes, one.layout,
            )  # fmt: skip
            lost = one.failures
            in_all.add_row(
                f"{one.gpus:,}", f"+{one.stragglers['days']:,.1f} days", f"{lost['mtbf_hours']:,.1f} h",
                f"{lost['start_seconds'] / 60:,.0f} min", f"{lost['checkpoint_minutes']:,.1f} min",
                seconds(lost["stall_seconds"]), percent(lost["training_share"]), f"{one.total['days']:,.1f}",
                between(one.days_interval), f"{one.total['price']:,.0f}", f"{one.price_per_million_tokens:.3g}",
                "-" if one.kwh is None else f"{one.kwh:,.0f}",
                f"{one.spares['hosts']:,} (+{one.spares['price']:,.0f})",
            )  # fmt: skip
        console.print(steps)
        console.print(in_all)
        if any("islands " in one.layout for one in costs):
            print_lines(console, ISLANDS_NOTE)
        print_lines(console, *self._sources(), *(f"{gpus:,} GPUs are left out: {why}" for gpus, why in without.items()))
        if self.days is not None:
            print_lines(console, f"Sizes assume the MFU of {name}; plan the size that you choose to see its own.")
        print_lines(
            console,
            f"The compute of {count(self.tokens)} tokens is optimal for {count(best['parameters'])} parameters on "
            f"{count(best['tokens'])} tokens (20 per parameter).",
        )

    def _sources(self) -> list[str]:
        """Where the numbers of the tables are from."""
        usual = self.stragglers == STRAGGLERS
        source = "3,079 jobs at ByteDance, arXiv:2505.05713, section 4.1" if usual else "--stragglers"
        return [
            f"Stragglers take {percent(self.stragglers)} of the time in all ({source}); steps have a part of it, "
            "waiting for the slowest host, and the rest is added.",
            f"A GPU is interrupted every {self.mtbf:,.0f} hours (Llama 3's by default: 419 in 54 days on 16,384), "
            f"starts again in {self.restart:g} minutes (assumed), {START_UP * 1e4:.0f} s for every 10,000 GPUs (NCCL "
            f"in arXiv:2510.20171), {MEETING * 1e4:.1f} s for every 10,000 processes to meet, and reading the "
            "checkpoint twice (once, where the same hosts restart and have it in memory). A GPU reads and writes "
            "0.12 GB/s (2 TB/s for 16,384). Training stalls for a copy to the "
            f"host ({HOST_COPY / 1e9:.0f} GB/s, assumed), and goes on while a checkpoint is written. Checkpoints are "
            f"at the interval that loses least (Young, Daly). Spare hosts are enough in {percent(ENOUGH)} of the time, "
            f"where {percent(HARDWARE)} of interruptions take a host away for {REPAIR_HOURS:g} hours (assumed); the "
            "cost does not have them. Energy is of the GPUs alone, at their largest power.",
        ]  # fmt: skip


def optimal(flops: float) -> dict[str, float]:
    """Compute-optimal parameters and tokens for so many FLOPs."""
    parameters = sqrt(flops / FLOPS / TOKENS_PER_PARAMETER)
    return {"parameters": parameters, "tokens": TOKENS_PER_PARAMETER * parameters}
