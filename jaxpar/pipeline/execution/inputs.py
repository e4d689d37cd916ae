"""Inputs of a rank in a tick, and the values that a tick hands on to the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from jaxpar.mesh.axes import vary
from jaxpar.mesh.collectives import shift_stage, sum_over_stages
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import Arrays, Weights
from jaxpar.pipeline.execution.program import EMBEDDING, NOTHING, STASHED, Loop, PipelineProgram, Run
from jaxpar.pipeline.execution.stages import Batch, Stages
from jaxpar.runtime.passes import Saved

type Row = dict[str, jax.Array]
"""One tick of this rank: a scalar for each of `jaxpar.pipeline.execution.program.FIELDS`."""


type Reports = dict[str, Float[Array, ""]]
"""Scalars by name."""


class Carry(NamedTuple):
    """The carry between ticks: the buffers of `program.BUFFERS`, gradients, and what is reported."""

    stash: PyTree
    arrivals: jax.Array
    cotangents: jax.Array
    outputs: jax.Array
    gradients: Weights
    """Accumulators in gradient placement; of the layers, where chunks are held, the gradients of these."""
    reported: Reports
    """Sums of the reports of the loss."""
    side: PyTree
    """Other results of passes through the layers, opaque here."""

    def with_layers(self, gradients: Arrays) -> Carry:
        """The carry with other gradients of the layers."""
        return self._replace(gradients=self.gradients | {LAYERS: gradients})


class Seeds(NamedTuple):
    """The start of a backward."""

    objective: Float[Array, ""]
    """Cotangent of the objective."""
    reports: Reports
    """Cotangents of what layers report, by name: sums over the tokens that do not pad a row."""


class Operands(NamedTuple):
    """The inputs of every tick."""

    weights: Weights
    """All weights, in storage placement."""
    layers: Arrays
    """The layers' weights: all of them in storage placement, or the chunks that are held."""
    microbatches: Batch
    """The fields of the batch, arrays [microbatch, ...]."""
    seeds: Seeds | None
    """None where nothing goes backward."""
    shared: Batch
    """Further fields of each microbatch, the same in all."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of this rank in the ticks of a program."""

    program: PipelineProgram
    stages: Stages

    def __post_init__(self) -> None:
        ranks, size = self.program.schedule.ranks, lax.axis_size("pipe")
        assert ranks == size, f"a program for {ranks} ranks on a pipe axis of {size}"

    @property
    def shares_vocabulary(self) -> bool:
        """Whether all pipeline ranks take part in the embedding and the loss."""
        return "pipe" in self.stages.vocab_axes

    def local(self, rows: dict[str, Shaped[Array, " ranks"]]) -> Row:
        """This rank's row, with the values of the first and the last chunk's ranks."""
        rank = lax.axis_index("pipe")
        ranks = {"first": self.program.schedule.rank_of[0], "last": self.program.last_rank}
        others = {f"{kind}_{end}": rows[f"{kind}_microbatch"][r] for kind in "fb" for end, r in ranks.items()}
        return {name: column[rank] for name, column in rows.items()} | {f"of_{k}": v for k, v in others.items()}

    def input(
        self, row: Row, operands: Operands, arrivals: jax.Array, stash: PyTree
    ) -> Shaped[Array, "batch seq embed"]:
        """The input of this tick's forward: embeddings, what arrived, or what the stash has."""
        x = self.stages.embed(operands.weights, self.first(row, operands, "f"))
        if self.program.slots["arrivals"]:
            x = jnp.where(row["f_source"] == EMBEDDING, x, read_slot(arrivals, row["f_arrival"]))
        if stash is not None and (self.program.rows["f_source"] == STASHED).any():
            stashed = self.stages.loop.input_of(Saved(stash, row["f_slot"]), row["f_chunk"])
            x = jnp.where(row["f_source"] == STASHED, stashed, x)
        return x

    def shared(self, y: Shaped[Array, "batch seq embed"], valid: Bool[Array, ""]) -> Shaped[Array, "batch seq embed"]:
        """The last chunk's output, on every rank where all share the head, and on its own otherwise."""
        if not self.shares_vocabulary:
            return y
        return sum_over_stages(jnp.where(valid, y, 0))

    def arrived(self, run: Run, what: str, row: Row, value: jax.Array, buffer: jax.Array) -> jax.Array:
        """`buffer` with the `value` that a neighbour, or this rank itself, sends in this tick."""
        for field, shift in ((f"{what}_before", 1), (f"{what}_behind", -1), (f"{what}_self", 0)):
            if field in run.arrivals:
                moved = shift_stage(value, shift, wrap=self.program.wraps) if shift else value
                buffer = put(buffer, moved, jnp.maximum(row[field], 0), row[field] != NOTHING)
        return buffer

    def microbatch(self, operands: Operands, index: Int[Array, ""]) -> Batch:
        """One of the microbatches, with what all of them share."""
        microbatch = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, index, keepdims=False), operands.microbatches)
        return microbatch | operands.shared

    def first(self, row: Row, operands: Operands, kind: str) -> Batch:
        """The microbatch that the first chunk's rank has: the one to embed, whichever ranks take part in it."""
        return self.microbatch(operands, row[f"of_{kind}_first"])

    def last(self, row: Row, operands: Operands, kind: str) -> Batch:
        """The microbatch that the last chunk's rank has: the one whose loss is due."""
        return self.microbatch(operands, row[f"of_{kind}_last"])

    def shapes(self, operands: Operands) -> tuple[PyTree, PyTree]:
        """Shapes of a chunk's input and of a microbatch's tokens."""

        def first(weights: Weights) -> PyTree:
            data = self.microbatch(operands, vary(jnp.int32(0)))
            return self.stages.embed(weights, data), self.stages.token_context(data)

        return jax.eval_shape(first, operands.weights)

    def loop_over[C](self, part: Loop, tick: Callable[[Run, Row, C], C], carry: C) -> C:
        """`tick(run, row, carry)` for each tick of a loop of the program."""

        def once(carry: C, rows: dict[str, jax.Array]) -> tuple[C, None]:
            for run in part.runs:
                first = run.first - part.first
                run_rows = {name: column[first : first + run.ticks] for name, column in rows.items()}
                body = lambda carry, rows, run=run: (tick(run, self.local(rows), carry), None)
                carry, _ = lax.scan(body, carry, run_rows)
            return carry, None

        ticks = slice(part.first, part.first + part.repeats * part.ticks)
        tables = {name: table[ticks] for name, table in self.program.rows.items()}
        if part.repeats == 1:
            return once(carry, {name: jnp.asarray(table) for name, table in tables.items()})[0]
        shaped = {name: jnp.asarray(t.reshape(part.repeats, part.ticks, -1)) for name, t in tables.items()}
        return lax.scan(once, carry, shaped)[0]


def buffers(slots: Mapping[str, int], x: PyTree) -> dict[str, Shaped[Array, "slots batch seq embed"]]:
    """Zeros for what ranks send each other, each like `x`."""
    with jax.named_scope("saved_activations"):
        return {
            name: vary(jnp.zeros((slots[name], *x.shape), x.dtype)) for name in ("arrivals", "cotangents", "outputs")
        }


def read_slot(buffer: Shaped[Array, "slots ..."], slot: Int[Array, ""]) -> Shaped[Array, "..."]:
    """The value in a slot; zeros of a buffer that has none."""
    if not buffer.shape[0]:
        return vary(jnp.zeros(buffer.shape[1:], buffer.dtype))
    return lax.dynamic_index_in_dim(buffer, slot, keepdims=False)


def put(
    buffer: Shaped[Array, "slots ..."], value: Shaped[Array, "..."], slot: Int[Array, ""], valid: Bool[Array, ""]
) -> Shaped[Array, "slots ..."]:
    """`buffer` with `value` in a slot, if `valid`; a buffer without slots stays as it is."""
    if not buffer.shape[0]:
        return buffer
    value = jnp.where(valid, value, read_slot(buffer, slot))
    return lax.dynamic_update_index_in_dim(buffer, value, slot, 0)
