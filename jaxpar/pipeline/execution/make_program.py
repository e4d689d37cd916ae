"""Conversion of a schedule's ticks to the executor's program, with values of one action for a later one in few
slots."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.execution.program import (
    ARRIVAL,
    ARRIVALS,
    BUFFERS,
    EMBEDDING,
    FIELDS,
    NOTHING,
    STASHED,
    Loop,
    PipelineProgram,
    Run,
    Window,
)
from jaxpar.pipeline.lockstep import branching_ticks
from jaxpar.pipeline.table import Schedule, Tick
from jaxpar.runtime.repeats import repeats


def make_program(
    schedule: Schedule,
    ticks: Sequence[Tick] | None = None,
    *,
    hold: bool = False,
    branching: bool = False,
) -> PipelineProgram:
    """The program of `schedule`, or of other ticks of its actions (a schedule of forwards alone is fine).

    With `hold`, the weights of a chunk are gathered once for all its forwards and once for all its backwards, and kept
    meanwhile: right for a schedule that finishes with a chunk before it begins the next. With `branching` each rank
    takes one action a tick, in its published order.
    """
    if ticks is None:
        ticks = branching_ticks(schedule.orders, schedule.chunks) if branching else schedule.ticks
    tables = _Tables(schedule, ticks, branching)
    if hold:
        tables.hold()
    runs = tables.runs()
    loops = (Loop((run,), 1) for run in runs) if hold else fold(runs)
    return PipelineProgram(schedule, tables.rows, tables.counts, tuple(loops), tables.loads, tables.releases, branching)


class _Tables:
    """The rows of all ticks, the slots of the buffers, and the chunks that are held."""

    def __init__(self, schedule: Schedule, ticks: Sequence[Tick], branching: bool):
        self.schedule, self.ticks, self.branching = schedule, ticks, branching
        self.loads: dict[int, list[Window]] = {}
        self.releases: dict[int, list[Window]] = {}
        self.when = {a: t for t, tick in enumerate(ticks) for actions in tick for a in actions}
        self.rows = {name: np.zeros((len(ticks), schedule.ranks), np.int32) for name in FIELDS}
        for name in ARRIVALS:
            self.rows[name][:] = NOTHING
        self.last = schedule.chunks - 1
        self.lifetimes = {buffer: [dict() for _ in range(schedule.ranks)] for buffer in BUFFERS}
        for action in self.when:
            self._note_lifetimes(action)
        self.slots = {b: [assign_slots(lives) for lives in ranks] for b, ranks in self.lifetimes.items()}
        self.counts = {b: max(slot_count(s.values()) for s in ranks) for b, ranks in self.slots.items()}
        for tick, ranks in enumerate(ticks):
            present = {action.kind for actions in ranks for action in actions}
            for rank, actions in enumerate(ranks):
                for action in actions:
                    self._write(tick, rank, action)
                if not self.branching:
                    self._idle(tick, rank, present - {action.kind for action in actions})

    def hold(self) -> None:
        """Slots for the chunks in use, over all ranks: gathered and scattered by all of them at once."""
        # A forward that is repeated into the stash must find the weights that it was run with.
        uses = {"f": (self.rows["f_counts"] == 1) | (self.rows["f_source"] == STASHED), "b": self.rows["b_counts"] == 1}
        used = lambda kind, chunk: uses[kind] & (self.rows[f"{kind}_chunk"] == chunk)
        weights: dict[tuple[str, int], Lifetime] = {}
        gradients: dict[tuple[str, int], Lifetime] = {}
        for chunk in range(self.schedule.virtual_stages):
            ticks = (np.flatnonzero(used(kind, chunk).any(axis=1)).tolist() for kind in "fb")
            forward, backward = (Lifetime(each[0], each[-1]) for each in ticks)
            gradients["b", chunk] = backward
            if backward.first <= forward.last:  # its weights are gathered once, for both
                weights["fb", chunk] = Lifetime(forward.first, backward.last)
            else:
                weights |= {("f", chunk): forward, ("b", chunk): backward}
        for buffer, lives in (("weights", weights), ("gradients", gradients)):
            slots = assign_slots(lives)
            self.counts[buffer] = slot_count(slots.values())
            for (kinds, chunk), slot in slots.items():
                for kind in kinds:
                    self.rows[f"{kind}_{buffer}"][used(kind, chunk)] = slot
        for (kinds, chunk), slot in assign_slots(weights).items():
            self.loads.setdefault(weights[kinds, chunk].first, []).append(Window(chunk, slot))
        for (kinds, chunk), slot in assign_slots(gradients).items():
            self.releases.setdefault(gradients[kinds, chunk].last + 1, []).append(Window(chunk, slot))

    def _note_lifetimes(self, action: Action) -> None:
        """The values that must be stored for `action`, from when they are made until `action` uses them."""
        rank, tick = self.schedule.rank_of[action.chunk], self.when[action]
        name = action.microbatch, action.chunk
        note = lambda buffer, first: self.lifetimes[buffer][rank].__setitem__(name, Lifetime(first, tick))
        match action.kind:
            case Kind.FORWARD:
                if action.chunk > 0:  # arrives after its tick, so its slot is taken from the next one on
                    note("arrivals", self.when[Action(Kind.FORWARD, action.microbatch, action.chunk - 1)] + 1)
            case Kind.BACKWARD:
                forward = self.when[Action(Kind.FORWARD, *name)]
                note("stash", forward)
                if action.chunk == self.last:
                    note("outputs", forward)
                else:
                    note("cotangents", self.when[Action(Kind.BACKWARD, action.microbatch, action.chunk + 1)] + 1)
            case Kind.WEIGHT:
                note("kept", self.when[Action(Kind.BACKWARD, *name)])

    def _write(self, tick: int, rank: int, action: Action) -> None:
        name = action.microbatch, action.chunk
        slot = lambda buffer: self.slots[buffer][rank].get(name, 0)
        chunk = self.schedule.chunks_of[rank].index(action.chunk)
        row = {"counts": 1, "microbatch": action.microbatch, "chunk": chunk}
        match action.kind:
            case Kind.FORWARD:
                row |= {
                    "source": ARRIVAL if action.chunk else EMBEDDING, "arrival": slot("arrivals"),
                    "slot": slot("stash"), "last": action.chunk == self.last, "output": slot("outputs"),
                }  # fmt: skip
                self._send(tick, rank, "y", Action(Kind.FORWARD, action.microbatch, action.chunk + 1), "arrivals")
            case Kind.BACKWARD:
                row |= {
                    "slot": slot("stash"), "first": action.chunk == 0, "last": action.chunk == self.last,
                    "cotangent": slot("cotangents"), "output": slot("outputs"), "kept": slot("kept"),
                }  # fmt: skip
                self._send(tick, rank, "g", Action(Kind.BACKWARD, action.microbatch, action.chunk - 1), "cotangents")
            case Kind.WEIGHT:
                row = {"counts": 1, "chunk": chunk, "kept": slot("kept")}
        for field, value in row.items():
            self.rows[f"{action.kind.value.lower()}_{field}"][tick, rank] = value

    def _send(self, tick: int, rank: int, what: str, following: Action, buffer: str) -> None:
        """Note with the receiver that what this action makes arrives after this tick."""
        if following not in self.when:
            return
        to, ranks = self.schedule.rank_of[following.chunk], self.schedule.ranks
        neighbours = {(rank + 1) % ranks: "before", (rank - 1) % ranks: "behind"}
        if ranks == 2:  # both neighbours are the same rank: forwards go one way round, backwards the other
            neighbours = {1 - rank: "before" if what == "y" else "behind"}
        field = f"{what}_{'self' if to == rank else neighbours[to]}"
        assert self.rows[field][tick, to] == NOTHING, f"rank {to} gets two things in one way after tick {tick}"
        self.rows[field][tick, to] = self.slots[buffer][to][following.microbatch, following.chunk]

    def _idle(self, tick: int, rank: int, kinds: set[Kind]) -> None:
        """The row of a rank without actions of these `kinds`, which others have in a tick."""
        free = lambda name: free_slot(self.slots[name][rank], self.lifetimes[name][rank], tick, self.counts[name])
        if Kind.BACKWARD in kinds and self.counts["kept"]:
            slot = free("kept")
            if slot is None:
                slot = self.counts["kept"]
                self.counts["kept"] += 1
            self.rows["b_kept"][tick, rank] = slot
        if Kind.FORWARD not in kinds or not self.counts["stash"]:
            return
        if (slot := free("stash")) is not None:
            self.rows["f_slot"][tick, rank] = slot
            return
        lives, slots = self.lifetimes["stash"][rank], self.slots["stash"][rank]
        name = next(name for name, life in lives.items() if life.first < tick <= life.last)
        again = {"microbatch": name[0], "chunk": self.schedule.chunks_of[rank].index(name[1]), "slot": slots[name]}
        for field, value in (again | {"source": STASHED}).items():
            self.rows[f"f_{field}"][tick, rank] = value

    def runs(self) -> list[Run]:
        """Ticks in a row with the same signature."""
        cuts = sorted({*self.loads, *self.releases})
        direction = "b" if self.rows["b_counts"].any() else "f"

        def signature(tick: int) -> tuple[frozenset[Kind], bool, int]:
            kinds = frozenset(action.kind for actions in self.ticks[tick] for action in actions)
            head = bool((self.rows[f"{direction}_last"][tick] & self.rows[f"{direction}_counts"][tick]).any())
            head |= self.branching and Kind.BACKWARD in kinds  # which costs no more: ranks branch around the loss too
            return kinds, head, bisect_right(cuts, tick)

        runs = []
        for (kinds, head, _), group in groupby(range(len(self.ticks)), key=signature):
            numbers = list(group)
            arrivals = frozenset(name for name in ARRIVALS if (self.rows[name][numbers] != NOTHING).any())
            runs.append(Run(kinds, head, numbers[0], len(numbers), arrivals))
        return runs


MOST_RUNS = 6
"""Runs that a repeated pattern is looked for in; as many as V-Half has on two ranks that branch."""


def fold(runs: Sequence[Run]) -> Iterator[Loop]:
    """Loops that stand for `runs`: a pattern of runs that repeats is written once.

    Interleaved schedules alternate between ticks with and without the loss, as often as there are microbatches for it.
    """
    keys = [(run.kinds, run.head, run.ticks) for run in runs]
    for repeat in repeats(keys, MOST_RUNS):
        each = zip(*(runs[turn] for turn in repeat.turns), strict=True)
        arrivals = lambda same: frozenset().union(*(run.arrivals for run in same))
        yield Loop(tuple(replace(same[0], arrivals=arrivals(same)) for same in each), repeat.times)


@dataclass(frozen=True)
class Lifetime:
    """First and last tick in which a value must be in its slot, both included."""

    first: int
    last: int


def assign_slots[Name: Hashable](lifetimes: Mapping[Name, Lifetime]) -> dict[Name, int]:
    """A slot for each value such that no two that live at once share one; as few slots as ever live at once.

    Values are taken in order of their first tick and get the lowest slot that is free (an interval graph, so greedy
    is optimal).
    """
    slots: dict[Name, int] = {}
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for name in sorted(lifetimes, key=lambda name: (lifetimes[name].first, lifetimes[name].last)):
        while busy and busy[0][0] < lifetimes[name].first:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else len(busy)
        slots[name] = slot
        heapq.heappush(busy, (lifetimes[name].last, slot))
    return slots


def free_slot[Name: Hashable](
    slots: Mapping[Name, int], lifetimes: Mapping[Name, Lifetime], tick: int, count: int
) -> int | None:
    """A slot below `count` that holds nothing in `tick`; None where all are taken."""
    taken = {slots[name] for name, life in lifetimes.items() if life.first <= tick <= life.last}
    return next((slot for slot in range(count) if slot not in taken), None)


def slot_count(slots: Iterable[int]) -> int:
    """Slots that a buffer needs."""
    return max(slots, default=-1) + 1
