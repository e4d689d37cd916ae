"""V-Half: half of 1F1B's activations, from a building block that repeats (arXiv:2405.15362)."""

from __future__ import annotations

from collections import deque

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.lockstep import with_weights
from jaxpar.pipeline.table import Order, Tick, needs, v_placement

F, B, W = Kind


def v_half(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Order, ...]:
    """V-Half (arXiv:2405.15362, section 3): 2 * ((ranks + 2) // 2) chunks in flight on a rank, half of 1F1B's memory.

    The building block is repeated and squeezed: every rank keeps its order and goes through it as early as it can, with
    all actions one unit long. Only once a rank has started its last microbatch do W give way to F and B, and fill the
    time in which it would wait. The bubble is at most half of 1F1B's, (ranks - 1) (F + B + W) / 2 with the times of a
    rank's two chunks together, where F = B = W; for other times it does not grow with the microbatches as long as
    W + 2 B >= 2 F and W + 2 F >= 2 B. (The paper's optional reordering of the warm-up is left out.)
    """
    room = 2 * ((ranks + 2) // 2)
    orders = [_without_last_weights(_building_blocks(rank, ranks, microbatches), rank) for rank in range(ranks)]
    return squeeze(orders, 2 * ranks, room)


def v_half_ticks(ranks: int, microbatches: int, virtual_stages: int) -> tuple[Tick, ...]:
    """V-Half in uniform ticks: a microbatch every two ticks, and a tick from one chunk to the next.

    The two chunks of a rank are then in flight for 4 * ranks ticks together, whatever the rank, so that each rank
    stashes 2 * ranks chunks: about half of the 2 * (2 * ranks - 1) that 1F1B in uniform ticks stashes on rank 0, with
    a bubble of (ranks - 1) (F + B). The published order would let a rank go forward in two of three ticks only.
    """
    chunks = 2 * ranks
    length = 2 * (microbatches - 1) + 2 * chunks - 1
    table: list[list[list[Action]]] = [[[] for _ in range(ranks)] for _ in range(length)]
    for kind in (F, B):
        for chunk, rank in enumerate(v_placement(ranks)):
            first = chunk if kind is F else 2 * (chunks - 1) - chunk
            for m in range(microbatches):
                table[first + 2 * m][rank].append(Action(kind, m, chunk))
    ticks = [tuple(map(tuple, tick)) for tick in table]
    backwards = [[a for tick in ticks for a in tick[rank] if a.kind is B] for rank in range(ranks)]
    return with_weights(ticks, [list(map(_weight_of, of_rank)) for of_rank in backwards])


def _building_blocks(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """The actions of one rank in the order of the building block, which repeats every 6 units of time.

    A microbatch goes down the V at two units a rank, so that its way back, at one unit, fits between. For even
    `ranks`, three units more before the backward keep the actions of successive microbatches from colliding. W take
    the units that F and B leave.
    """
    down, up = rank, 2 * ranks - 1 - rank
    turn = 3 if ranks % 2 == 0 else 0
    block = {
        2 * rank: (F, down),
        3 * ranks - 2 - rank: (F, up),
        3 * ranks - 1 + turn + 2 * rank: (B, up),
        6 * ranks - 2 + turn - rank: (B, down),
    }
    at = {t + 6 * m: Action(kind, m, chunk) for m in range(microbatches) for t, (kind, chunk) in block.items()}
    order: list[Action] = []
    weights: deque[Action] = deque()
    for t in range(max(at) + 1):
        if t in at:
            order.append(at[t])
            weights += [_weight_of(at[t])] if at[t].kind is B else []
        elif weights:
            order.append(weights.popleft())
    return [*order, *weights]


def _without_last_weights(order: list[Action], down: int) -> list[Action]:
    """`order` without the W that stand behind the last F of the chunk `down`."""
    last = max(at for at, action in enumerate(order) if action.kind is F and action.chunk == down)
    return [action for at, action in enumerate(order) if action.kind is not W or at < last]


def squeeze(orders: list[list[Action]], chunks: int, room: int) -> tuple[Order, ...]:
    """Place actions of unit length as early as their order allows, and fill gaps with W actions that are in no order.

    A rank whose next action is blocked, because its input is missing or `room` chunks are in flight, runs the oldest
    remaining W.
    """
    ranks = range(len(orders))
    placed = {action for order in orders for action in order}
    ahead = [deque(order) for order in orders]
    weights: list[deque[Action]] = [deque() for _ in ranks]
    squeezed: list[list[Action]] = [[] for _ in ranks]
    in_flight = [0 for _ in ranks]
    done: set[Action] = set()
    while any(ahead) or any(weights):
        now: list[Action] = []
        for rank in ranks:
            following = ahead[rank][0] if ahead[rank] else None
            ready = following is not None and done.issuperset(needs(following, chunks))
            if following is not None and ready and (following.kind is not F or in_flight[rank] < room):
                action = ahead[rank].popleft()
            elif weights[rank]:
                action = weights[rank].popleft()
            else:
                continue
            now.append(action)
            squeezed[rank].append(action)
            in_flight[rank] += {F: 1, B: 0, W: -1}[action.kind]
            if action.kind is B and _weight_of(action) not in placed:
                weights[rank].append(_weight_of(action))
        assert now, "the building block needs more room than it was given"
        done.update(now)
    return tuple(map(tuple, squeezed))


def _weight_of(backward: Action) -> Action:
    return Action(W, backward.microbatch, backward.chunk)
