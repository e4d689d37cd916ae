"""The registry of schedules: their names, requirements and generators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from jaxpar.pipeline.errors import ScheduleError
from jaxpar.pipeline.lockstep import lockstep_ticks
from jaxpar.pipeline.schedules import one_forward_one_backward as plain
from jaxpar.pipeline.schedules import v_half, v_shape, zero_bubble
from jaxpar.pipeline.table import Order, Schedule, Tick, loop_placement, v_placement

type Sizes = tuple[int, int, int]
"""(ranks, microbatches, virtual stages)"""


@dataclass(frozen=True)
class Family:
    """A generator of schedules, for any sizes that it supports."""

    description: str
    """One line: what the schedule does and where it was published."""
    orders: Callable[[int, int, int], tuple[Order, ...]]
    """(ranks, microbatches, virtual_stages) -> the order of each rank."""
    splits_backward: bool = False
    """Whether gradients of weights are actions of their own (W)."""
    placement: Literal["loop", "v"] = "loop"
    """Placement of chunks on ranks: round-robin, or in a V."""
    virtual_stages: tuple[int, int | None] = (1, 1)
    """Fewest and most chunks a rank can have; None where there is no most."""
    one_rank: bool = False
    """Whether it is for one rank only."""
    multiple: bool = False
    """Whether microbatches must be a multiple of ranks where a rank has several chunks."""
    microbatches_per_rank: int = 0
    """Fewest microbatches, in multiples of ranks."""
    ticks: Callable[[int, int, int], tuple[Tick, ...]] | None = None
    """(ranks, microbatches, virtual_stages) -> uniform ticks, where those of `lockstep_ticks` would be poor, or
    where the orders come from them."""

    def needs(self) -> str:
        """Requirements on ranks (p), microbatches (m) and virtual stages (v), as text."""
        low, high = self.virtual_stages
        parts = ["p = 1"] if self.one_rank else []
        if self.multiple:
            parts.append("m a multiple of p" if low > 1 else "m a multiple of p where v > 1")
        if self.microbatches_per_rank:
            parts.append("m >= p" if self.microbatches_per_rank == 1 else f"m >= {self.microbatches_per_rank}p")
        parts.append(f"v = {low}" if low == high else f"v >= {low}")
        return ", ".join(parts)


SCHEDULES: dict[str, Family] = {
    "one-stage": Family("gradient accumulation: microbatch by microbatch", plain.one_stage, one_rank=True),
    "gpipe": Family("all forward, then all backward (GPipe, arXiv:1811.06965)", plain.gpipe),
    "1f1b": Family("one forward, one backward (PipeDream-Flush, arXiv:2006.09503)", plain.one_f_one_b),
    "interleaved": Family(
        "1F1B with several chunks a rank, in groups of p microbatches (Megatron-LM, arXiv:2104.04473)",
        plain.interleaved, virtual_stages=(2, None), multiple=True,
    ),
    "breadth-first": Family(
        "all microbatches through a chunk before the next: each chunk's weights are gathered twice a batch "
        "(arXiv:2211.05953)",
        plain.breadth_first, virtual_stages=(1, None), microbatches_per_rank=1,
    ),
    "zb-uniform": Family(
        "1F1B with all ranks' W in the same ticks: a zero-bubble schedule without branches",
        zero_bubble.zb_uniform, splits_backward=True, virtual_stages=(1, None), multiple=True,
        ticks=zero_bubble.zb_uniform_ticks,
    ),
    "zb-h1": Family(
        "1F1B with W where the rank would wait, at 1F1B's memory (arXiv:2401.10241)",
        zero_bubble.zb_h1, splits_backward=True,
    ),
    "zb-v": Family(
        "two chunks in a V, no bubble where F, B and W take as long, at 1F1B's memory (arXiv:2401.10241)",
        v_shape.zb_v, splits_backward=True, placement="v", virtual_stages=(2, 2),
    ),
    "dualpipe-v": Family(
        "two chunks in a V, a forward beside a backward in the steady state (DeepSeek, arXiv:2412.19437)",
        v_shape.dualpipe_v, splits_backward=True, placement="v", virtual_stages=(2, 2), microbatches_per_rank=2,
    ),
    "v-half": Family(
        "two chunks in a V, half of 1F1B's memory and half of its bubble (arXiv:2405.15362)",
        v_half.v_half, splits_backward=True, placement="v", virtual_stages=(2, 2), ticks=v_half.v_half_ticks,
    ),
}  # fmt: skip
"""Published schedules by name."""


def schedule_name(name: str) -> str:
    """The registered spelling of `name`, in which - and _ and case do not matter; raises ScheduleError."""
    spelled = name.strip().lower().replace("_", "-")
    if spelled in SCHEDULES:
        return spelled
    near = get_close_matches(spelled, SCHEDULES, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ScheduleError(f"there is no schedule {name!r}{hint}; there are: {', '.join(SCHEDULES)}")


def make_schedule(name: str, *, ranks: int, microbatches: int, virtual_stages: int | None = None) -> Schedule:
    """The schedule `name` for `ranks` pipeline ranks; raises ScheduleError where the sizes do not fit it.

    `virtual_stages` is the number of chunks on each rank; None is the fewest that the schedule can have.
    """
    name = schedule_name(name)
    family = SCHEDULES[name]
    low, _ = family.virtual_stages
    sizes = ranks, microbatches, low if virtual_stages is None else virtual_stages
    check_sizes(name, *sizes)
    orders = family.orders(*sizes)
    rank_of = v_placement(ranks) if family.placement == "v" else loop_placement(ranks, sizes[2])
    ticks = family.ticks(*sizes) if family.ticks else lockstep_ticks(orders, len(rank_of))
    return Schedule(name, *sizes, rank_of, family.splits_backward, orders, ticks)


def check_sizes(name: str, ranks: int, microbatches: int, virtual_stages: int) -> None:
    """Raises ScheduleError where the schedule `name` (as registered) cannot be made for these sizes."""
    family = SCHEDULES[name]
    for what, size in (("ranks", ranks), ("microbatches", microbatches), ("virtual stages", virtual_stages)):
        if size < 1:
            raise ScheduleError(f"{name}: {what} must be at least 1, got {size}")
    if family.one_rank and ranks != 1:
        raise ScheduleError(f"{name} is for 1 pipeline rank, got {ranks}")
    low, high = family.virtual_stages
    if virtual_stages < low or (high is not None and virtual_stages > high):
        wanted = f"exactly {low}" if low == high else f"at least {low}"
        raise ScheduleError(f"{name} needs {wanted} virtual stages a rank, got {virtual_stages}")
    if family.multiple and virtual_stages > 1 and microbatches % ranks:
        raise ScheduleError(
            f"{name} needs microbatches that are a multiple of its {ranks} ranks, got {microbatches}; "
            f"{_multiples_near(microbatches, ranks)} would do"
        )
    fewest = family.microbatches_per_rank * ranks
    if microbatches < fewest:
        raise ScheduleError(f"{name} on {ranks} ranks needs at least {fewest} microbatches, got {microbatches}")


def _multiples_near(size: int, of: int) -> str:
    below = size // of * of
    return f"{below} or {below + of}" if below else str(of)
