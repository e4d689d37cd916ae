"""Times programs in turns, round after round, by two clocks, so that disturbances of the machine affect all alike."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

CLOCKS = ("wall", "processor")
"""Seconds that pass, and seconds for which the threads of this process compute."""

type Times = Mapping[Any, list[float]]
"""Seconds of each program in each round, by one clock."""


def take_turns(programs: Mapping[Any, Callable[[], Any]], rounds: int, devices: int = 1) -> Mapping[str, Times]:
    """By each of `CLOCKS`: seconds of each program in each round; the processor's are shared out among `devices`."""
    times: dict[str, dict[Any, list[float]]] = {clock: {name: [] for name in programs} for clock in CLOCKS}
    for _ in range(rounds):
        for name, program in programs.items():
            wall, processor = time.perf_counter(), time.process_time()
            jax.block_until_ready(program())
            times["wall"][name].append(time.perf_counter() - wall)
            times["processor"][name].append((time.process_time() - processor) / devices)
    return times


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def processor_name() -> str:
    """The processor's name where Linux reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
