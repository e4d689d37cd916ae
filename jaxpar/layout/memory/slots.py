"""Slots of the buffers of a pipeline's program; also by formula, since making a program takes up to a second."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from jaxpar.pipeline.execution.program import PipelineProgram
from jaxpar.pipeline.schedules import SCHEDULES


class Slots(NamedTuple):
    """Slots of each buffer of a pipeline's program, and how many of its runs of ticks have a loss."""

    stash: int
    arrivals: int
    cotangents: int
    outputs: int
    kept: int
    weights: int
    gradients: int
    heads: int

    @staticmethod
    def from_program(program: PipelineProgram) -> Slots:
        """The slots of a program, also of one whose schedule is from a table."""
        buffers = {name: program.slots.get(name, 0) for name in Slots._fields if name != "heads"}
        return Slots(**buffers, heads=sum(run.head for run in program.runs))

    @property
    def sent(self) -> int:
        """Buffers of what is sent from rank to rank."""
        return self.arrivals + self.cotangents + self.outputs


@cache
def pipeline_slots(schedule: str, ranks: int, microbatches: int, virtual_stages: int, hold: bool = False) -> Slots:
    """The slots that `pipeline.program` gives a published schedule.

    F and B of a chunk on rank 0 are 2 (p - 1) ticks apart, and every tick starts a new microbatch; chunks that wait for
    the others of a rank add p each. GPipe and breadth-first keep all. In a V a rank's two chunks are in flight for 4 p
    ticks together, and every second tick brings a microbatch.
    """
    p, m, v = ranks, microbatches, virtual_stages
    if schedule == "one-stage" or p == 1:
        return Slots(1, 0, 0, 1, 0, 0, 0, 1)
    all_chunks, split = m * v, SCHEDULES[schedule].splits_backward
    waiting = max(1, m - p + 1) if schedule == "breadth-first" and v > 1 else 1
    stash = {
        "gpipe": all_chunks,
        "breadth-first": all_chunks,
        "zb-v": 2 * p,
        "dualpipe-v": 2 * p + 1,
        "v-half": 2 * p,
    }.get(schedule, 2 * (p - 1) + (v - 1) * p + 1)
    return Slots(
        stash=min(all_chunks, stash),
        arrivals=2 if schedule in ("zb-v", "dualpipe-v") else waiting,
        cotangents=waiting,
        outputs=m if schedule in ("gpipe", "breadth-first") else 1,
        kept=min(p, all_chunks + 1) if split else 0,
        weights=min(v, 2) if hold else 0,
        gradients=min(v, 2) if hold else 0,
        heads=_runs_with_loss(schedule, p, m, v),
    )


def _runs_with_loss(schedule: str, p: int, m: int, v: int) -> int:
    """Runs of ticks in which the last chunk goes backward, of at least as many microbatches as ranks."""
    match schedule:
        case "1f1b":
            return 1
        case "interleaved":
            return 1 if m == p else 2
        case "zb-uniform":
            return 2 if v == 1 or m == p else 3
        case "zb-v" | "v-half":
            return min(p, 4) + (m > p)
        case "dualpipe-v":
            return {2: 3, 3: 5, 4: 6}.get(p, 7)
    return 2
