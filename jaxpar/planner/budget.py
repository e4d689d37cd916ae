"""Days and costs of a training run against the number of GPUs, the best layout at each (vTrain, arXiv:2312.12391).

Beside them it prints the compute-optimal size for the same compute: 20 tokens per parameter and 6 FLOPs per parameter
and token (Hoffmann et al. 2022, arXiv:2203.15556). With a number of days, it prints the same for the compute of each
number of GPUs in that time at the predicted speed, not at the peak, which would suggest a larger model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from jaxpar.config import UserError, load_config
from jaxpar.config.checks.islands import check_one_island
from jaxpar.config.strict_json import json_text
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.power import capped, power_of
from jaxpar.layers.counting import parameter_count
from jaxpar.layout.plan_file import LARGEST_NUMBER
from jaxpar.planner.failures import GPU_HOURS, RESTART_MINUTES, START_UP, STRAGGLERS
from jaxpar.planner.planning import gpu_numbers, hosts_of_one_kind, planned_config
from jaxpar.planner.report import words
from jaxpar.planner.report.screen import print_lines, screen, table
from jaxpar.planner.run_cost import FLOPS, Cost, Run, optimal
from jaxpar.units import count, percent

MOST_STRAGGLERS = 0.9
"""Largest share of the time that may be given as lost to stragglers; ByteDance's worst hundredth of jobs lost 45%."""


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
    json: bool = False
    mtbf: float = GPU_HOURS
    restart: float = RESTART_MINUTES
    stragglers: float = STRAGGLERS
    power_cap: float | None = None

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
        check_one_island(config, "jaxpar.plan budget")
        run = Run(
            planned_config(config), cluster, self.tokens, self.price, self.days,
            self.mtbf, self.restart, self.stragglers, self.power_cap,
        )  # fmt: skip
        costs, without = self._costs(run, numbers)
        best = optimal(FLOPS * parameter_count(run.config.model, padded=False) * self.tokens)
        if self.json:
            found = {"costs": [asdict(one) for one in costs], "compute_optimal": best, "without_layout": without}
            print(json_text(found, indent=2))
            return
        print_budget(run, costs, best, without, screen())

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

    def _costs(self, run: Run, numbers: Sequence[int]) -> tuple[list[Cost], dict[int, str]]:
        """The cost of each number of GPUs; and those that have no layout, with the reason."""
        costs, without = [], {}
        for gpus in numbers:
            try:
                costs.append(run.cost(gpus))
            except UserError as error:
                without[gpus] = str(error)
        if not costs:
            raise UserError(f"--gpus {self.gpus}: no layout at any of these numbers; {without[numbers[-1]]}")
        return costs, without


def print_budget(
    run: Run, costs: Sequence[Cost], best: Mapping[str, float], without: Mapping[int, str], console: Console
) -> None:
    """The tables, and where their numbers are from."""
    name = run.config.run.name
    buys = () if run.days is None else (f"best size in {run.days:g} days", "its tokens")
    steps = table(
        ("GPUs", "days", words.INTERVAL, "cost", "tokens/s", "MFU", *buys, "layout"), ("layout",),
        f"{name}: {count(run.tokens)} tokens, {run.price:g} a GPU-hour",
    )  # fmt: skip
    in_all = table(
        ("GPUs", "stragglers", "interrupted every", "starts in", "save every", "trains", "days", words.INTERVAL, "cost",
         "per million tokens", "kWh"), (), "With stragglers and failures",
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
            f"{lost['start_seconds'] / 60:,.0f} min", f"{lost['checkpoint_minutes']:,.0f} min",
            percent(lost["training_share"]), f"{one.total['days']:,.1f}", between(one.days_interval),
            f"{one.total['price']:,.0f}", f"{one.price_per_million_tokens:.3g}",
            "-" if one.kwh is None else f"{one.kwh:,.0f}",
        )  # fmt: skip
    console.print(steps)
    console.print(in_all)
    print_lines(console, *_sources(run), *(f"{gpus:,} GPUs are left out: {why}" for gpus, why in without.items()))
    if run.days is not None:
        print_lines(console, f"Sizes assume the MFU of {name}; plan the size that you choose to see its own.")
    print_lines(
        console,
        f"The compute of {count(run.tokens)} tokens is optimal for {count(best['parameters'])} parameters on "
        f"{count(best['tokens'])} tokens (20 per parameter).",
    )


def _sources(run: Run) -> list[str]:
    """Where the numbers of the tables are from."""
    usual = run.stragglers == STRAGGLERS
    source = "3,079 jobs at ByteDance, arXiv:2505.05713, section 4.1" if usual else "--stragglers"
    return [
        f"Stragglers take {percent(run.stragglers)} of the time in all ({source}); steps have a part of it, waiting "
        "for the slowest host, and the rest is added.",
        f"A GPU is interrupted every {run.mtbf:,.0f} hours (Llama 3's by default: 419 in 54 days on 16,384), "
        f"starts again in {run.restart:g} minutes (assumed) and {START_UP * 1e4:.0f} s for every 10,000 GPUs "
        "(NCCL in arXiv:2510.20171), and saves 0.12 GB/s (2 TB/s for 16,384); checkpoints are at the interval that "
        "loses least (Young, Daly). Energy is of the GPUs alone, at their largest power.",
    ]  # fmt: skip
