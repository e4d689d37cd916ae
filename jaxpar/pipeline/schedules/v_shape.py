"""Schedules for two chunks a rank placed in a V: the model goes down the ranks and back up."""

from __future__ import annotations

from collections import deque

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.table import Order

FORWARD, BACKWARD, WEIGHT = Kind


def zb_v(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """ZB-V (arXiv:2401.10241), handcrafted for F, B and W of one length, where it has no bubble.

    Rank r starts after r actions and then never waits, with 1F1B's memory on every rank. It takes 2 * ranks - 1
    microbatches to fill the pipeline; with fewer, the actions of those that are missing are left out.
    """
    full = max(microbatches, 2 * ranks - 1)
    return tuple(_first_microbatches(_zb_v_rank(rank, ranks, full), microbatches) for rank in range(ranks))


def _zb_v_rank(rank: int, ranks: int, microbatches: int) -> Order:
    steady = microbatches - ranks
    with_forward = microbatches - (2 * ranks - 1 - rank)
    return play(
        rank,
        ranks,
        ["F0"] * (2 * (ranks - rank) - 1),
        ["F1", "F0"] * rank,
        ["F1", "B1", "W1"] * (ranks - rank),
        ["F0", "B0", "W0", "F1", "B1", "W1"] * with_forward,
        ["B0", "W0", "F1", "B1", "W1"] * (steady - with_forward),
        ["B0", "B1"] * rank,
        ["B0", "W0"] * (ranks - rank),
        ["W1"] * rank,
        ["W0"] * rank,
    )


def dualpipe_v(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """DualPipeV (DeepSeek's DualPipe, arXiv:2412.19437, section 3.2.1, cut in half into a V by its authors).

    In the steady state a forward through one half is next to a whole backward through the other, which a kernel
    may overlap. W is part of the backward there, and waits only towards the end, to fill what would be a bubble.
    """
    return tuple(_dualpipe_v_rank(rank, ranks, microbatches) for rank in range(ranks))


def _dualpipe_v_rank(rank: int, ranks: int, microbatches: int) -> Order:
    after = ranks - 1 - rank
    drain = ["B1", "B0"] * (rank + 1)
    unsplit, split = drain[: rank + 1], drain[rank + 1 :]
    return play(
        rank,
        ranks,
        ["F0"] * (2 * after),
        ["F0", "F1"] * (rank + 1),
        ["B1", "W", "F1"] * after,
        ["F0", "B1", "W", "F1", "B0", "W"] * (microbatches - 2 * ranks + rank + 1),
        ["B1", "W", "F1", "B0", "W"] * after,
        [word for backward in unsplit for word in (backward, "W")],
        split,
        ["W", "B0"] * after,
        ["W"] * (rank + 1),
    )


def play(rank: int, ranks: int, *phrases: list[str]) -> Order:
    """The actions of phrases such as F0 B1 W1 W: a kind and which of the rank's two halves (0 down, 1 up).

    Each word takes the next microbatch of its kind and half; W alone is the oldest W that is left.
    """
    chunk = (rank, 2 * ranks - 1 - rank)
    count: dict[str, int] = {}
    pending: deque[Action] = deque()
    order: list[Action] = []
    for word in (word for phrase in phrases for word in phrase):
        if word == "W":
            order.append(pending.popleft())
            continue
        kind, half = Kind(word[0]), int(word[1])
        action = Action(kind, count.get(word, 0), chunk[half])
        count[word] = action.microbatch + 1
        order.append(action)
        if kind is BACKWARD:
            pending.append(Action(WEIGHT, action.microbatch, action.chunk))
        if kind is WEIGHT:
            pending.remove(action)
    return tuple(order)


def _first_microbatches(order: Order, microbatches: int) -> Order:
    return tuple(action for action in order if action.microbatch < microbatches)
