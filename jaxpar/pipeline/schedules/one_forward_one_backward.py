"""GPipe, 1F1B and interleaved 1F1B: the schedules in which the backward is one action."""

from __future__ import annotations

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.table import Order

F, B = Kind.FORWARD, Kind.BACKWARD


def one_stage(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """Gradient accumulation on one rank: microbatch after microbatch, forward then backward."""
    return (tuple(Action(kind, m) for m in range(microbatches) for kind in (F, B)),)


def gpipe(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """Run all microbatches forward, then all backward (GPipe, arXiv:1811.06965, figure 2c)."""
    return tuple(tuple(Action(kind, m, rank) for kind in (F, B) for m in range(microbatches)) for rank in range(ranks))


def one_f_one_b(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """1F1B (PipeDream-Flush, arXiv:2006.09503, section 3.1): `ranks - rank` microbatches in flight."""
    return tuple(
        alternate(
            [Action(F, m, rank) for m in range(microbatches)],
            [Action(B, m, rank) for m in range(microbatches)],
            warm_up=ranks - 1 - rank,
        )
        for rank in range(ranks)
    )


def interleaved(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """Interleaved 1F1B (Megatron-LM, arXiv:2104.04473, section 2.2): groups of `ranks` microbatches, chunk by chunk."""
    return tuple(
        alternate(
            _by_groups(F, rank, ranks, microbatches, virtual_stages),
            _by_groups(B, rank, ranks, microbatches, virtual_stages),
            warm_up=2 * (ranks - 1 - rank) + (virtual_stages - 1) * ranks,
        )
        for rank in range(ranks)
    )


def breadth_first(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """Run all microbatches through a chunk before the next, then backward in reverse (arXiv:2211.05953, section 4)."""
    return tuple(
        tuple(
            Action(kind, m, lap * ranks + rank)
            for kind, laps in ((F, range(virtual_stages)), (B, reversed(range(virtual_stages))))
            for lap in laps
            for m in range(microbatches)
        )
        for rank in range(ranks)
    )


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> Order:
    """`warm_up` F, then F and B in turn, then the B that are left."""
    warm_up = min(warm_up, len(forwards))
    pairs = zip(forwards[warm_up:], backwards, strict=False)
    steady = [action for pair in pairs for action in pair]
    return (*forwards[:warm_up], *steady, *backwards[len(forwards) - warm_up :])


def _by_groups(kind: Kind, rank: int, ranks: int, microbatches: int, virtual_stages: int) -> list[Action]:
    """The actions of one kind: each group of `ranks` microbatches through one chunk after the other."""
    laps = list(range(virtual_stages))
    return [
        Action(kind, m, lap * ranks + rank)
        for group in range(0, microbatches, ranks)
        for lap in (laps if kind is F else reversed(laps))
        for m in range(group, min(group + ranks, microbatches))
    ]
