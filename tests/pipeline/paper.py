"""A pipeline's program run on paper: with names for numbers, by its rows alone, as the executor runs it on devices."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from jaxpar.pipeline.actions import Action, Kind
from jaxpar.pipeline.execution.program import ARRIVAL, BUFFERS, EMBEDDING, NOTHING, STASHED, PipelineProgram, Run

F, B, W = Kind
SHIFTS = {"before": 1, "behind": -1, "self": 0}
IDLE = "made by a rank that had nothing to do"

type Row = dict[str, int]


class Paper:
    """Runs a program and asserts that each action finds what it is meant to find.

    A slot holds the name of what was written to it last. A tick computes F, B and W on each rank in turn; what F and B
    make then arrives where the receivers' rows say. A rank without an action computes all the same, and writes.
    """

    def __init__(self, program: PipelineProgram):
        self.program, self.schedule = program, program.schedule
        self.done: list[Action] = []
        """Actions that counted, in order."""
        self.buffers = {name: [[None] * program.slots[name] for _ in range(self.schedule.ranks)] for name in BUFFERS}  # type: dict[str, list[list[Any]]]
        self.totals: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """Where chunks are held, by (rank, slot): what was added to the gradients there."""

    def run(self) -> None:
        ticks = list(self._runs())
        assert [tick for tick, _ in ticks] == list(range(self.program.ticks)), "loops go through all ticks in order"
        for tick, run in ticks:
            self._hold(tick)
            self._tick(tick, run)
        self._hold(self.program.ticks)

    def _runs(self) -> Iterator[tuple[int, Run]]:
        """Each tick in the order of the loops, and the run that it belongs to."""
        for loop in self.program.loops:
            for again in range(loop.repeats):
                tick = loop.first + again * loop.ticks
                for run in loop.runs:
                    yield from ((tick + more, run) for more in range(run.ticks))
                    tick += run.ticks

    def _tick(self, tick: int, run: Run) -> None:
        sent: dict[str, list[Any]] = {"y": [], "g": []}
        ends = self.program.rows["b_counts"][tick] & self.program.rows["b_last"][tick]
        if B in run.kinds and not self.program.branching:
            assert run.head == ends.any(), "ranks that share the head count it in each tick in which it is run"
        for rank in range(self.schedule.ranks):
            row = {name: int(column[tick, rank]) for name, column in self.program.rows.items()}
            runs = lambda kind, row=row: (
                kind in run.kinds and (not self.program.branching or row[f"{kind.value.lower()}_counts"])
            )
            for kind in Kind:
                assert kind in run.kinds or not row[f"{kind.value.lower()}_counts"], "an action is run"
            sent["y"].append(self._forward(row, rank) if runs(F) else IDLE)
            sent["g"].append(self._backward(row, rank, run) if runs(B) else IDLE)
            if runs(W) and row["w_counts"]:
                self._weight(row, rank)
        for what, buffer in (("y", "arrivals"), ("g", "cotangents")):
            for source, shift in SHIFTS.items():
                self._arrive(tick, run, f"{what}_{source}", shift, buffer, sent[what])

    def _forward(self, row: Row, rank: int) -> Any:
        stash = self.buffers["stash"][rank]
        name = microbatch, chunk = row["f_microbatch"], self.schedule.chunks_of[rank][row["f_chunk"]]
        if not row["f_counts"]:
            if row["f_source"] == STASHED:
                assert stash[row["f_slot"]] == name, "what is repeated is what stands in the slot"
                self._finds_weights(row, rank, "f")
            elif stash:
                stash[row["f_slot"]] = IDLE
            return IDLE
        self.done.append(Action(F, *name))
        self._finds_weights(row, rank, "f")
        assert row["f_source"] == (ARRIVAL if chunk else EMBEDDING)
        assert chunk == 0 or self.buffers["arrivals"][rank][row["f_arrival"]] == (microbatch, chunk - 1)
        if stash:
            stash[row["f_slot"]] = name
        assert row["f_last"] == (chunk == self.schedule.chunks - 1)
        if row["f_last"] and self.buffers["outputs"][rank]:
            self.buffers["outputs"][rank][row["f_output"]] = name
        return name

    def _backward(self, row: Row, rank: int, run: Run) -> Any:
        kept = self.buffers["kept"][rank]
        name = microbatch, chunk = row["b_microbatch"], self.schedule.chunks_of[rank][row["b_chunk"]]
        if not row["b_counts"]:
            if kept:
                kept[row["b_kept"]] = IDLE
            return IDLE
        self.done.append(Action(B, *name))
        self._finds_weights(row, rank, "b")
        assert self.buffers["stash"][rank][row["b_slot"]] == name
        assert (row["b_first"], row["b_last"]) == (chunk == 0, chunk == self.schedule.chunks - 1)
        if row["b_last"]:
            assert run.head, "the loss is run"
            assert self.buffers["outputs"][rank][row["b_output"]] == name
        else:
            assert self.buffers["cotangents"][rank][row["b_cotangent"]] == (microbatch, chunk + 1)
        if kept:
            kept[row["b_kept"]] = name
        if self.program.holds:
            self.totals[rank, row["b_gradients"]].append((row["b_chunk"], microbatch))
        return name

    def _weight(self, row: Row, rank: int) -> None:
        name = self.buffers["kept"][rank][row["w_kept"]]
        assert name[1] == self.schedule.chunks_of[rank][row["w_chunk"]]
        self.done.append(Action(W, *name))

    def _arrive(self, tick: int, run: Run, field: str, shift: int, buffer: str, sent: list[Any]) -> None:
        for rank in range(self.schedule.ranks):
            slot = int(self.program.rows[field][tick, rank])
            if slot == NOTHING:
                continue
            assert field in run.arrivals, "somebody listens"
            assert self.program.wraps or 0 <= rank - shift < self.schedule.ranks, "somebody sends"
            found = sent[(rank - shift) % self.schedule.ranks]
            assert found != IDLE, "what arrives was made in this tick"
            self.buffers[buffer][rank][slot] = found

    # ---- chunks that are held

    def _finds_weights(self, row: Row, rank: int, kind: str) -> None:
        if self.program.holds:
            assert self.buffers["weights"][rank][row[f"{kind}_weights"]] == row[f"{kind}_chunk"]

    def _hold(self, tick: int) -> None:
        everything = set(range(self.schedule.microbatches))
        for window in self.program.releases.get(tick, []):
            for rank in range(self.schedule.ranks):
                found = self.totals.pop((rank, window.slot))
                assert sorted(found) == [(window.chunk, m) for m in sorted(everything)], "gradients are complete"
        for window in self.program.loads.get(tick, []):
            for rank in range(self.schedule.ranks):
                self.buffers["weights"][rank][window.slot] = window.chunk
