"""Jobs that share a cluster, on synthetic traces: each policy of `plan cluster --jobs` on the same random jobs.

    python -m benchmarks.planner.jobs                                 # 40 traces of 30 jobs on h100:16x8

Jobs arrive at random (exponential gaps) so that the cluster has `--load` of its work. Their work is uniform on a
logarithmic scale over two decades; half of them have a deadline of 1.5 to 4 times the time that they would take alone
on the GPUs they ask for, which are an eighth to the whole of the number that the curve calls efficient. Curves are
those of the planner for two shipped configurations.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence

from jaxpar.cli import Parser, command, positive
from jaxpar.config import load_config
from jaxpar.pages.units import percent
from jaxpar.planner.failures import HOUR
from jaxpar.planner.jobs.job import Curve, Job, planned_curve
from jaxpar.planner.jobs.policies import outcomes
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.planning import planned_config

CONFIGS = ("configs/llama3_8b.yaml", "configs/llama3_70b.yaml")
EASE = (1.5, 4.0)
"""Deadlines, as multiples of the time alone on the GPUs that a job asks for."""


def trace(seed: int, jobs: int, load: float, curves: Sequence[Curve], gpus: int) -> list[Job]:
    """Random jobs; hours of work between half an hour and fifty on the GPUs that they ask for."""
    draw = random.Random(seed)
    made, now = [], 0.0
    for index in range(jobs):
        curve = draw.choice(curves)
        asked = curve.within(max(curve.least, curve.efficient // draw.choice([1, 2, 4, 8])))
        alone = HOUR * 0.5 * 100 ** draw.random()
        deadline = now + draw.uniform(*EASE) * alone if draw.random() < 0.5 else None
        made.append(Job(f"job{index}", alone * curve.speed(asked), curve, now, deadline, 1.0, asked))
        now += draw.expovariate(1) * alone * asked / gpus / load
    return made


@command()
def main(arguments: Sequence[str]) -> None:
    """Command line; the exit code is 2 for a user error."""
    parser = Parser("benchmarks.planner.jobs", __doc__)
    parser.add_argument("--traces", type=positive, default=40)
    parser.add_argument("--jobs", type=positive, default=30)
    parser.add_argument("--load", type=float, default=0.9)
    options = parser.parse_args(arguments)
    cluster = named_cluster("h100:16x8")
    curves = [planned_curve(planned_config(load_config(path)), cluster) for path in CONFIGS]
    traces = [trace(seed, options.jobs, options.load, curves, cluster.devices) for seed in range(options.traces)]
    runs = [outcomes(jobs, cluster.devices) for jobs in traces]
    due = sum(job.deadline is not None for jobs in traces for job in jobs)
    print(f"{options.traces} traces of {options.jobs} jobs on {cluster.name}, load {options.load:g}")
    print("| policy | deadlines met | mean hours to finish | beside first in, first out | best on |")
    print("|---|---|---|---|---|")
    usual = [run["first in, first out"].mean_time for run in runs]
    for name in ("by curves", "shortest first", "equal shares", "first in, first out"):
        times = [run[name].mean_time for run in runs]
        met = 1 - sum(len(run[name].late) for run in runs) / due
        ratio = statistics.geometric_mean(time / other for time, other in zip(times, usual, strict=True))
        best = sum(next(iter(run)) == name for run in runs)
        print(f"| {name} | {percent(met)} | {statistics.fmean(times) / HOUR:.1f} | {ratio:.2f} | {best} traces |")


if __name__ == "__main__":
    sys.exit(main())
