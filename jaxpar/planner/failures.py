"""The losses of a long run on many GPUs to failures (the time between them, checkpoints, lost work, starts), to
stragglers, and the hosts that wait as spares."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, log, sqrt
from typing import Annotated

from jaxpar.config import Config
from jaxpar.hardware.sources import assumed, chosen, cited, derived, measured
from jaxpar.pages.units import TERA

HOUR: Annotated[float, derived("60 x 60")] = 3600.0
"""Seconds of an hour."""
GPU_HOURS: Annotated[float, cited("419 in 54 days on 16,384 H100: Llama 3, arXiv:2407.21783, section 3.3.4")] = (
    16_384 * 54 * 24 / 419
)
"""Hours of one GPU between unexpected interruptions."""
STORAGE: Annotated[
    float,
    assumed("Llama 3, section 3.3.1: 2 TB/s; that 16,384 GPUs have all of it, and others as much each, is assumed"),
] = 2 * TERA / 16_384
"""Bytes per second that a GPU can save."""
STATE: Annotated[float, derived("three numbers of float32")] = 12.0
"""Bytes of a checkpoint per parameter: master weights and two moments in float32. Each is written once, and read from
storage `READS` times in a restart; what a save reads back is still in memory."""
READS: Annotated[int, derived("jaxpar/checkpoint/")] = 2
"""A restart verifies each byte and then restores it. With as many processes on the same mesh, and parts that fit into
free memory, it would be 1 (`tests/checkpoint/test_bytes.py`), but a host that takes a faulty one's place, and another
number of processes, read twice."""
HOST_COPY: Annotated[float, assumed("a PCIe 4.0 x16 link has three times as much")] = 0.01 * TERA
"""Bytes per second at which a GPU's state is copied to its host while training waits; it is written while training goes
on."""
MEETING: Annotated[float, measured("python -m benchmarks.watching: 2,000 take 1.3 s")] = 1.3 / 2000
"""Seconds per process until all have met, with one process per GPU."""
START_UP: Annotated[float, cited("265 s at 96k GPUs: NCCLX, arXiv:2510.20171")] = 265.0 / 98_304
"""Seconds per GPU until communicators of NCCL are ready; taken as proportional, although it grows faster than that.
Meta's own library is up to 11 times as fast."""
RESTART_MINUTES: Annotated[float, assumed("--restart sets it")] = 10.0
"""Minutes from a failure to the first step besides: noticing it, new hosts, compiling."""
HARDWARE: Annotated[float, cited("Llama 3, arXiv:2407.21783, section 3.3.4")] = 0.78
"""Share of interruptions that a faulty host causes."""
REPAIR_HOURS: Annotated[float, assumed("a day")] = 24.0
"""Hours until a faulty host is back."""
ENOUGH: Annotated[float, chosen("a word of the budget")] = 0.99
"""Share of the time in which there are enough spare hosts."""
STRAGGLERS: Annotated[
    float, cited("3,079 jobs of 128 GPUs and more at ByteDance: arXiv:2505.05713, sections 3.1 and 4.1")
] = 0.104
"""Share of its GPU-hours that a run loses to stragglers; a tenth of the jobs lost 21.3% and more. Taken as the same for
any number of GPUs, since the study found no obvious correlation with it (section 4.4)."""


@dataclass(frozen=True)
class Reliability:
    """The cost of failures for a run; seconds."""

    between: float
    """Seconds from one interruption to the next."""
    stall: float
    """Seconds for which training waits at a checkpoint."""
    save: float
    """To write a checkpoint, and to read it once; a restart reads it `READS` times."""
    every: float
    """Seconds from one checkpoint to the next."""
    start: float
    """Seconds from an interruption to the first step after it."""

    @property
    def overhead(self) -> float:
        """Seconds lost per second of training: stalls of checkpoints, and for each interruption a start and the steps
        since the last checkpoint that was complete."""
        return self.stall / self.every + (self.every / 2 + self.save + self.start) / self.between

    @property
    def share(self) -> float:
        """Share of the time that trains."""
        return 1 / (1 + self.overhead)


def reliability(
    gpus: int,
    parameters: float,
    gpu_hours: float = GPU_HOURS,
    restart_minutes: float = RESTART_MINUTES,
    per_parameter: float = STATE,
) -> Reliability:
    """A run of a model on so many GPUs, with the checkpoint interval sqrt(2 stall between) that loses least (Young
    1974; Daly 2006, to first order), but no shorter than a save."""
    between = gpu_hours * HOUR / gpus
    state = per_parameter * parameters / gpus
    stall, save = state / HOST_COPY, state / STORAGE
    every = max(save, sqrt(2 * stall * between))
    start = 60 * restart_minutes + (START_UP + MEETING) * gpus + READS * save
    return Reliability(between, stall, save, every, start)


def state_per_parameter(config: Config) -> float:
    """Bytes of a run's checkpoint per parameter: the state of each island, and the global weights with their momentum,
    in float32."""
    islands = config.islands
    return (STATE + 8.0 * islands.eager) * config.parallel.islands + 8.0 * islands.share_mesh


def spare_hosts(gpus: int, gpu_hours: float = GPU_HOURS) -> int:
    """The fewest spare hosts that are enough in `ENOUGH` of the time, where failures of hosts are a Poisson process."""
    away = gpus / gpu_hours * HARDWARE * REPAIR_HOURS
    enough = 0.0
    for spares in range(gpus):
        enough += exp(spares * log(away) - away - lgamma(spares + 1))
        if enough >= ENOUGH:
            return spares
    return gpus


def straggling(share: float, counted: float) -> float:
    """Seconds of a run with stragglers over those that were predicted.

    Args:
        share: of the time that is lost to stragglers in all.
        counted: share of the predicted time that is waiting for the slowest host.
    """
    return max(1.0, (1 - counted) / (1 - share))
