"""What a training run costs on one number of GPUs: its best layout, stragglers, failures, energy."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from jaxpar.config import Config
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.power import power_of
from jaxpar.layers.counting import parameter_count
from jaxpar.planner.failures import HOUR, Reliability, reliability, straggling
from jaxpar.planner.planning import search_on
from jaxpar.planner.prices import Prices
from jaxpar.planner.report import words
from jaxpar.planner.step_time.model import StepTime

DAY = 24 * HOUR
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
    """Of steps as predicted, as are `price`, `tokens_per_s` and `mfu`."""
    price: float
    tokens_per_s: float
    mfu: float
    stragglers: dict[str, float]
    """`share` of the time that is lost to stragglers in all, the share that is `counted` in the predicted step, and the
    `days` and `price` that the rest adds."""
    failures: dict[str, float]
    """`mtbf_hours`, `save_seconds`, `start_seconds`, `checkpoint_minutes`, `training_share`, and `days` and `price`
    with failures alone."""
    total: dict[str, float]
    """`days` and `price` with stragglers and failures."""
    optimal: dict[str, float] | None = None
    """Compute-optimal parameters and tokens for these GPUs in the given days at this speed."""
    days_interval: tuple[float, float] | None = None
    """Days in all in four of five cases; None on CPUs."""
    steps_interval: tuple[float, float] | None = None
    """The same of `days`, of steps alone."""
    kwh: float | None = None
    """Energy in all of the GPUs alone at their largest power; None where that is not known."""
    kwh_per_million_tokens: float | None = None
    price_per_million_tokens: float | None = None
    """In all."""


@dataclass(frozen=True)
class Run:
    """What is trained, and what it meets."""

    config: Config
    cluster: Cluster
    """Whose hosts it runs on."""
    tokens: float
    prices: Prices
    days: float | None
    """A time budget, for compute-optimal sizes."""
    mtbf: float
    """Hours of one GPU between interruptions."""
    restart: float
    """Minutes from an interruption to the first step, without the start of communicators."""
    stragglers: float
    """Share of the time that is lost to them."""
    power_cap: float | None
    """Watts of a GPU."""

    def cost(self, gpus: int) -> Cost:
        """On so many GPUs. Raises `UserError` where no layout fits."""
        search = search_on(self.config, self.cluster, gpus)
        planned = search.best(1)[0]
        time = planned.candidate.time
        lost = reliability(gpus, parameter_count(planned.config.model, padded=False), self.mtbf, self.restart)
        days, all_days = self._days(time, gpus), self._days(time, gpus, lost)
        low, high = (1.0, 1.0) if planned.spread is None else planned.spread.interval(1.0)
        kwh = self._kwh(all_days, gpus)
        price = self._price(all_days, gpus)
        return Cost(
            gpus, words.whole(planned.candidate.layout), days, self._price(days, gpus),
            time.tokens_per_s_per_gpu * gpus, time.mfu,
            stragglers=self._stragglers(time, days, gpus),
            failures=self._failures(lost, days, gpus),
            total={"days": all_days, "price": price},
            optimal=None if self.days is None else self._optimal(time, gpus),
            days_interval=None if planned.spread is None else (low * all_days, high * all_days),
            steps_interval=None if planned.spread is None else (low * days, high * days),
            kwh=kwh,
            kwh_per_million_tokens=None if kwh is None else kwh / self.tokens * 1e6,
            price_per_million_tokens=price / self.tokens * 1e6,
        )  # fmt: skip

    def _days(self, time: StepTime, gpus: int, lost: Reliability | None = None) -> float:
        """Of predicted steps alone; with stragglers and failures where these are given."""
        days = self.tokens / (time.tokens_per_s_per_gpu * gpus) / DAY
        return days if lost is None else days * straggling(self.stragglers, counted(time)) / lost.share

    def _stragglers(self, time: StepTime, days: float, gpus: int) -> dict[str, float]:
        more = days * (straggling(self.stragglers, counted(time)) - 1)
        return {
            "share": max(self.stragglers, counted(time)), "counted": counted(time), "days": more,
            "price": self._price(more, gpus),
        }  # fmt: skip

    def _failures(self, lost: Reliability, days: float, gpus: int) -> dict[str, float]:
        with_them = days / lost.share
        return {
            "mtbf_hours": lost.between / HOUR, "save_seconds": lost.save, "start_seconds": lost.start,
            "checkpoint_minutes": lost.every / 60, "training_share": lost.share, "days": with_them,
            "price": self._price(with_them, gpus),
        }  # fmt: skip

    def _optimal(self, time: StepTime, gpus: int) -> dict[str, float]:
        assert self.days is not None
        return optimal(time.mfu * self.cluster.gpu.training_peak * gpus * self.days * DAY)

    def _price(self, days: float, gpus: int) -> float:
        return self.prices.of(days * 24 * gpus, self._kwh(days, gpus))

    def _kwh(self, days: float, gpus: int) -> float | None:
        """Energy of the GPUs alone at their largest power; None where that is not known."""
        watts = self.power_cap or power_of(self.cluster.gpu)
        return None if watts is None else watts / 1000 * gpus * days * 24


def counted(time: StepTime) -> float:
    """Share of a predicted step that is waiting for the slowest host."""
    return time.breakdown["stragglers"] / time.seconds


def optimal(flops: float) -> dict[str, float]:
    """Compute-optimal parameters and tokens for so many FLOPs."""
    parameters = sqrt(flops / FLOPS / TOKENS_PER_PARAMETER)
    return {"parameters": parameters, "tokens": TOKENS_PER_PARAMETER * parameters}
