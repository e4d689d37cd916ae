"""Speed of a job against its number of GPUs, from the best layout at each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxpar.config import Config, UserError
from jaxpar.hardware.cluster import Cluster
from jaxpar.layers.counting import parameter_count
from jaxpar.planner.failures import reliability
from jaxpar.planner.planning import search_on
from jaxpar.planner.report import words

EFFICIENT = 0.8
"""Share of the best speed of a GPU at which a number of GPUs still counts as efficient."""


@dataclass(frozen=True)
class Point:
    """One number of GPUs."""

    tokens_per_s: float
    """With what failures cost."""
    pause: float
    """Seconds from the decision to run on this number until the first step: a checkpoint, and a start."""
    layout: str = ""
    """In words."""


@dataclass(frozen=True)
class Curve:
    """Points in ascending order of GPUs and of speed: a number that is no faster than a smaller one is left out."""

    points: Mapping[int, Point]

    def __post_init__(self) -> None:
        speeds = [point.tokens_per_s for point in self.points.values()]
        assert self.points and list(self.points) == sorted(self.points) and speeds == sorted(set(speeds))

    @property
    def least(self) -> int:
        """The smallest number."""
        return next(iter(self.points))

    @property
    def efficient(self) -> int:
        """The largest number whose GPUs have at least `EFFICIENT` of the best speed of a GPU."""
        each = {gpus: point.tokens_per_s / gpus for gpus, point in self.points.items()}
        return max(gpus for gpus, speed in each.items() if speed >= EFFICIENT * max(each.values()))

    def within(self, gpus: int) -> int:
        """The largest number of at most `gpus`; 0 where none is."""
        return max((number for number in self.points if number <= gpus), default=0)

    def speed(self, gpus: int) -> float:
        """Tokens per second; 0 for no GPUs."""
        return self.points[gpus].tokens_per_s if gpus else 0.0


def curve_of(points: Mapping[int, Point]) -> Curve:
    """The curve through those points that are faster than all smaller ones."""
    frontier: dict[int, Point] = {}
    for gpus in sorted(points):
        if all(points[gpus].tokens_per_s > point.tokens_per_s for point in frontier.values()):
            frontier[gpus] = points[gpus]
    return Curve(frontier)


def numbers_of(cluster: Cluster) -> list[int]:
    """Numbers of GPUs that a job may have: divisors of a host by powers of two, then whole hosts in steps of a half to
    a third, and all of them. Parts of hosts divide each other, so jobs that fit in number also fit onto hosts."""
    each, hosts = cluster.gpus_per_host, cluster.groups[0].hosts
    parts = [1 << power for power in range(each.bit_length()) if each % (1 << power) == 0 and 1 << power < each]
    several_hosts = {
        scale << power for scale in (1, 3) for power in range(hosts.bit_length()) if scale << power <= hosts
    }
    return [*parts, *(each * number for number in sorted(several_hosts | {hosts}))]


def planned_curve(config: Config, cluster: Cluster) -> tuple[Curve, dict[int, str]]:
    """The best layout at each number of GPUs; and the numbers that have none, with the reason.

    Args:
        config: of a run, as `planned_config` returns it.
        cluster: hosts of one kind; a job has some of them.

    Raises:
        UserError: no number of GPUs has a layout.
    """
    points: dict[int, Point] = {}
    without: dict[int, str] = {}
    parameters = parameter_count(config.model, padded=False)
    for gpus in numbers_of(cluster):
        try:
            planned = search_on(config, cluster, gpus).best(1)[0]
        except UserError as error:
            without[gpus] = str(error)
            continue
        best = planned.candidate
        lost = reliability(gpus, parameters)
        rate = best.time.tokens_per_s_per_gpu * gpus * lost.share
        points[gpus] = Point(rate, lost.save + lost.start, words.in_one_line(best.layout))
    if not points:
        raise UserError(f"no number of GPUs has a layout; on {gpus}: {without[gpus]}")
    return curve_of(points), without
