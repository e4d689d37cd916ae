"""The cost of a training run on one number of GPUs: its best layout, stragglers, failures, energy."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from jaxpar.config import Config
from jaxpar.hardware.cluster import Cluster
from jaxpar.hardware.power import power_of
from jaxpar.layers.counting import parameter_count
from jaxpar.planner.failures import HOUR, reliability, straggling
from jaxpar.planner.planning import search_on
from jaxpar.planner.report import words

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
    """Days of steps as predicted, as are `price`, `tokens_per_s` and `mfu`."""
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
    optimal: dict[str, float] | None
    """Compute-optimal parameters and tokens for these GPUs in the given days at this speed."""
    days_interval: tuple[float, float] | None
    """Days in all in four of five cases; None on CPUs."""
    steps_interval: tuple[float, float] | None
    """The same of `days`, of steps alone."""
    kwh: float | None
    """Energy in all of the GPUs alone at their largest power; None where that is not known."""
    price_per_million_tokens: float
    """In all."""


@dataclass(frozen=True)
class Run:
    """The run: its model, and the failures that it meets."""

    config: Config
    cluster: Cluster
    """Whose hosts it runs on."""
    tokens: float
    price: float
    """Price of a GPU-hour."""
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
        planned = search_on(self.config, self.cluster, gpus).best(1)[0]
        time, spread = planned.candidate.time, planned.spread
        lost = reliability(gpus, parameter_count(planned.config.model, padded=False), self.mtbf, self.restart)
        waiting = time.breakdown["stragglers"] / time.seconds
        slower = straggling(self.stragglers, waiting)
        days = self.tokens / (time.tokens_per_s_per_gpu * gpus) / DAY
        in_all = days * slower / lost.share
        price_of = lambda days: self.price * 24 * days * gpus
        priced = lambda days: {"days": days, "price": price_of(days)}
        interval = lambda days: None if spread is None else spread.interval(days)
        return Cost(
            gpus, words.in_one_line(planned.candidate.layout), **priced(days),
            tokens_per_s=time.tokens_per_s_per_gpu * gpus, mfu=time.mfu,
            stragglers={"share": max(self.stragglers, waiting), "counted": waiting} | priced(days * (slower - 1)),
            failures={
                "mtbf_hours": lost.between / HOUR, "save_seconds": lost.save, "start_seconds": lost.start,
                "checkpoint_minutes": lost.every / 60, "training_share": lost.share,
            } | priced(days / lost.share),
            total=priced(in_all),
            optimal=None
            if self.days is None
            else optimal(time.mfu * self.cluster.gpu.training_peak * gpus * self.days * DAY),
            days_interval=interval(in_all), steps_interval=interval(days),
            kwh=self._kwh(in_all, gpus),
            price_per_million_tokens=price_of(in_all) / self.tokens * 1e6,
        )  # fmt: skip

    def _kwh(self, days: float, gpus: int) -> float | None:
        """Energy of the GPUs alone at their largest power; None where that is not known."""
        watts = self.power_cap or power_of(self.cluster.gpu)
        return None if watts is None else watts / 1000 * gpus * days * 24


def optimal(flops: float) -> dict[str, float]:
    """Compute-optimal parameters and tokens for so many FLOPs."""
    parameters = sqrt(flops / FLOPS / TOKENS_PER_PARAMETER)
    return {"parameters": parameters, "tokens": TOKENS_PER_PARAMETER * parameters}
