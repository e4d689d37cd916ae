"""Which groups of layers are on the device at each use, when they do not all fit: evict what is used furthest ahead.

PatrickStar (arXiv:2108.05818) keeps a model's state in chunks in host memory, learns in a warm-up step in which order
they are used, and evicts from the device the chunk whose next use is furthest away (Belady's MIN). Here the order of a
step is known without a warm-up: layers are used forward from the first to the last, backward from the last to the
first, and each group's state is updated after its backward.

For groups of equal size MIN moves as few as any plan can, prefetch included: a load begins during the use before, so
the budget must hold a group and the one used after it, for MIN and for any other plan alike. For groups of different
sizes the least traffic is NP-hard to find (Chrobak et al. 2012), and furthest next use is
a heuristic; so it is for traffic where groups that were written must be copied back and others need not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxpar.config.errors import UserError

type Phase = Literal["forward", "backward", "update"]
type Policy = Literal["furthest", "least_recent"]


class GroupsTooLarge(UserError):
    """Two groups that must be on the device together are more than the budget."""

    def __init__(self, together: tuple[int, int], pinned: frozenset[int], needed: int, budget: int):
        self.together, self.needed = together, needed
        beside = f", beside {len(pinned)} that are pinned" if pinned else ""
        super().__init__(
            f"layer groups {together[0]} and {together[1]} must be on the device together{beside}: "
            f"{needed / 2**20:.1f} MiB, and the budget is {budget / 2**20:.1f} MiB; expected smaller groups or a "
            "larger budget"
        )


class Use(NamedTuple):
    """One thing that a step does with one group."""

    phase: Phase
    microbatch: int
    group: int

    @property
    def writes(self) -> bool:
        """Whether the group is changed, and must be copied back when it is evicted."""
        return self.phase == "update"


class Move(NamedTuple):
    """What is copied while a use computes."""

    use: Use
    load: int | None
    """The group that comes to the device, for the next use; None where it is there."""
    evict: tuple[int, ...]
    """Groups that leave the device before `load` comes."""
    written: tuple[int, ...]
    """Those of `evict` that were changed since they came, and are copied back."""
    resident: frozenset[int]
    """Groups on the device during the use, `load` included."""


@dataclass(frozen=True)
class ChunkPlan:
    """Moves of one or more steps that repeat: they end with the groups on the device that they began with."""

    sizes: tuple[int, ...]
    """Bytes of each group."""
    budget: int
    steps: int
    """Steps until the moves repeat."""
    moves: tuple[Move, ...]
    """Of all these steps."""

    @property
    def loads(self) -> float:
        """Copies to the device per step."""
        return sum(move.load is not None for move in self.moves) / self.steps

    @property
    def bytes_in(self) -> float:
        """Bytes copied to the device per step."""
        return sum(self.sizes[move.load] for move in self.moves if move.load is not None) / self.steps

    @property
    def bytes_out(self) -> float:
        """Bytes copied back to the host per step: of what is evicted, what an update changed."""
        return sum(self.sizes[group] for move in self.moves for group in move.written) / self.steps

    @property
    def pinned(self) -> tuple[int, ...]:
        """Groups that never leave the device."""
        return tuple(g for g in range(len(self.sizes)) if all(g in move.resident for move in self.moves))

    @property
    def streamed(self) -> tuple[int, ...]:
        """Groups that come and go."""
        return tuple(g for g in range(len(self.sizes)) if g not in self.pinned)

    @property
    def peak_bytes(self) -> int:
        """Bytes on the device at the fullest."""
        return max(sum(self.sizes[g] for g in move.resident) for move in self.moves)


def step_uses(
    groups: int, microbatches: int = 1, phases: Sequence[Phase] = ("forward", "backward", "update")
) -> list[Use]:
    """The uses of one step: each microbatch forward and backward in turn, updates after the last one's backwards.

    Args:
        groups: groups of layers, in the order of the model.
        microbatches: gradients accumulate over them.
        phases: in which a group is used: `("update",)` for the optimizer's state alone.
    """
    uses: list[Use] = []
    for microbatch in range(microbatches):
        uses += [Use("forward", microbatch, group) for group in range(groups) if "forward" in phases]
        for group in reversed(range(groups)):
            if "backward" in phases:
                uses.append(Use("backward", microbatch, group))
            if "update" in phases and microbatch == microbatches - 1:
                uses.append(Use("update", microbatch, group))
    return uses


def plan_chunks(
    sizes: Sequence[int], uses: Sequence[Use], budget: int, *, policy: Policy = "furthest", pinned: Sequence[int] = ()
) -> ChunkPlan:
    """The moves of a step in a run of many, each of which does `uses`.

    Args:
        sizes: bytes of each group.
        uses: of one step, in order.
        budget: bytes on the device.
        policy: which group is evicted: the one whose next use is `furthest` ahead, or, for comparison, the one that was
            used `least_recent`ly.
        pinned: groups that are never evicted (`groups_to_pin`).

    Raises:
        UserError: a group and the one used after it are more than the budget, beside what is pinned.
    """
    _check_fits(sizes, uses, budget, frozenset(pinned))
    walk = _Walk(tuple(sizes), tuple(uses), budget, policy, frozenset(pinned))
    state = _State(walk.pinned | {uses[0].group})
    seen: dict[_State, int] = {}
    steps: list[list[Move]] = []
    while state not in seen:
        seen[state] = len(steps)
        moves, state = walk.step(state)
        steps.append(moves)
    period = steps[seen[state] :]
    return ChunkPlan(walk.sizes, budget, len(period), tuple(move for step in period for move in step))


def groups_to_keep(sizes: Sequence[int], budget: int) -> tuple[int, ...]:
    """Groups to keep on the device for good where the others pass through it in small pieces, which have room besides.

    Each that still fits, from the last on: of a cycle those are used furthest ahead of where it begins anew.
    """
    kept: list[int] = []
    for group in reversed(range(len(sizes))):
        if sizes[group] <= budget:
            kept.append(group)
            budget -= sizes[group]
    return tuple(reversed(kept))


def groups_to_pin(sizes: Sequence[int], budget: int) -> tuple[int, ...]:
    """Groups to keep on the device for good, so that each step's moves are the same: from the last group on.

    What remains of the budget is room for two of the others, one in use and one that comes. All are pinned where they
    fit. Against evicting the furthest that costs about one group's load a step, and a program needs one shape.

    Raises:
        UserError: two groups are more than the budget.
    """
    if sum(sizes) <= budget:
        return tuple(range(len(sizes)))
    for first in range(len(sizes)):
        # The first `first` groups stream, in a cycle.
        pairs = [sizes[g] + sizes[(g + 1) % first] for g in range(first)] if first > 1 else [2 * sizes[0]]
        if first and max(pairs) + sum(sizes[first:]) <= budget:
            return tuple(range(first, len(sizes)))
    _check_fits(sizes, step_uses(len(sizes), phases=("update",)), budget, frozenset())
    return ()


class _State(NamedTuple):
    """What is on the device when a step begins."""

    resident: frozenset[int]
    changed: frozenset[int] = frozenset()
    """Of these, what the host has an old copy of."""
    recent: tuple[int, ...] = ()
    """Groups by their last use, the latest last; where the policy asks for it."""


@dataclass(frozen=True)
class _Walk:
    sizes: tuple[int, ...]
    uses: tuple[Use, ...]
    budget: int
    policy: Policy
    pinned: frozenset[int]

    def step(self, state: _State) -> tuple[list[Move], _State]:
        """One step's moves, and what they end with."""
        resident, changed, recent = set(state.resident), set(state.changed), list(state.recent)
        moves: list[Move] = []
        for place, use in enumerate(self.uses):
            assert use.group in resident, "it was loaded during the use before"
            if use.writes:
                changed.add(use.group)
            if self.policy == "least_recent":
                recent = [group for group in recent if group != use.group] + [use.group]
            coming = self.uses[(place + 1) % len(self.uses)].group
            load, evicted = None, []
            if coming not in resident:
                load, evicted = coming, self._evict(resident, {use.group, coming}, place, recent)
                resident.add(coming)
            written = [group for group in evicted if group in changed]
            changed -= set(written)
            moves.append(Move(use, load, tuple(evicted), tuple(written), frozenset(resident)))
        return moves, _State(frozenset(resident), frozenset(changed), tuple(recent))

    def _evict(self, resident: set[int], needed: set[int], place: int, recent: list[int]) -> list[int]:
        """Take from `resident` what must go for the group of the next use to come; returns what went."""
        (coming,) = needed - resident
        room = self.budget - self.sizes[coming]
        free = sorted(resident - needed - self.pinned)
        if self.policy == "furthest":
            free.sort(key=lambda group: -self._distance(group, place))
        else:
            free.sort(key=recent.index)
        evicted: list[int] = []
        while sum(self.sizes[group] for group in resident) > room:
            evicted.append(free.pop(0))
            resident.discard(evicted[-1])
        return evicted

    def _distance(self, group: int, place: int) -> int:
        """Uses from `place` until the next one of `group`, steps being repeated."""
        ahead = range(1, len(self.uses) + 1)
        return next(n for n in ahead if self.uses[(place + n) % len(self.uses)].group == group)


def _check_fits(sizes: Sequence[int], uses: Sequence[Use], budget: int, pinned: frozenset[int]) -> None:
    following = zip(uses, (*uses[1:], uses[0]), strict=True)
    needs = [(sum(sizes[group] for group in pinned | {a.group, b.group}), a.group, b.group) for a, b in following]
    most, now, after = max(needs)
    if most > budget:
        raise GroupsTooLarge((now, after), pinned, most, budget)


def grid(plan: ChunkPlan) -> str:
    """A row for each group, a column for each use: `#` in use, `+` coming, `=` on the device, `.` on the host."""
    lines = []
    for group in range(len(plan.sizes)):
        marks = "".join(
            "#" if move.use.group == group else "+" if move.load == group else "=" if group in move.resident else "."
            for move in plan.moves
        )
        lines.append(f"{group:>3} {marks}")
    phases = "".join(move.use.phase[0] for move in plan.moves)
    return "\n".join([f"    {phases}", *lines]) + "\n"
