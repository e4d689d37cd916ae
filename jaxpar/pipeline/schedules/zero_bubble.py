"""Zero-bubble schedules on one chunk a rank: the backward is split into B (input gradient) and W (weight gradient)."""

from __future__ import annotations

from functools import lru_cache

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.lockstep import lockstep_ticks
from jaxpar.pipeline.schedules.one_forward_one_backward import interleaved, one_f_one_b
from jaxpar.pipeline.table import Order, Tick

W = Kind.WEIGHT


def zb_uniform(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """1F1B, or interleaved 1F1B, in ticks that are the same on every rank, and in which all ranks do W together.

    The k-th W of every rank runs in the tick in which the last rank to get there does its k-th B. So no rank does
    anything of its own in a tick, and the W of the last ranks fill what 1F1B leaves empty: the bubble is
    (ranks - 1) (F + B) of a chunk, without W. The order of each rank is that of the ticks.
    """
    ticks = zb_uniform_ticks(ranks, microbatches, virtual_stages)
    return tuple(tuple(action for tick in ticks for action in tick[rank]) for rank in range(ranks))


@lru_cache(maxsize=1)
def zb_uniform_ticks(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Tick, ...]:
    """Uniform ticks of the schedule, cached because the orders come from them too."""
    plain = (one_f_one_b if virtual_stages == 1 else interleaved)(ranks, microbatches, virtual_stages)
    return lockstep_ticks([delay_weights(order, 0) for order in plain], ranks * virtual_stages)


def zb_h1(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """ZB-H1 (arXiv:2401.10241, section 2.1): W of rank r stays r behind B, within 1F1B's memory on rank 0."""
    orders = one_f_one_b(ranks, microbatches, virtual_stages)
    return tuple(delay_weights(order, delay=rank) for rank, order in enumerate(orders))


def delay_weights(order: Order, delay: int) -> Order:
    """`order` with each W placed after the B that comes `delay` later; those that are left stand at the end."""
    actions: list[Action] = []
    pending: list[Action] = []
    for action in order:
        actions.append(action)
        if action.kind is Kind.BACKWARD:
            pending.append(Action(W, action.microbatch, action.chunk))
            if len(pending) > delay:
                actions.append(pending.pop(0))
    return (*actions, *pending)
