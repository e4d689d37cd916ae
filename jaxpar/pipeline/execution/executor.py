"""Runs a pipeline's program inside the step's `shard_map`: the only loop over microbatches.

Ticks are uniform: in a tick every rank runs the same operations on its own microbatch and chunk, and operations for
which a rank has no action are computed and not counted. So no rank branches around a permute (which would corrupt
data), and a run of equal ticks is one `lax.scan`. The order in a tick is F, the loss of the last chunk, B, W; the
result of F is sent while B computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

from jaxpar.mesh.axes import AXES, vary, varying_axes
from jaxpar.mesh.layer_order import LAYERS, Chunk
from jaxpar.mesh.parameters import Arrays, Weights
from jaxpar.mesh.tracing import refuse_permutes
from jaxpar.pipeline.actions import Kind
from jaxpar.pipeline.execution.inputs import Carry, Inputs, Operands, Reports, Row, Seeds, buffers, put, read_slot
from jaxpar.pipeline.execution.program import PipelineProgram, Run
from jaxpar.pipeline.execution.stages import Batch, Layers, Stages
from jaxpar.runtime.passes import Accumulator, Cotangents, Saved

type Act = Callable[[Row, Carry, Operands], tuple[PyTree, Carry]]
"""One action of a tick: its value, and the carry after it."""


def execute(
    program: PipelineProgram,
    stages: Stages,
    weights: Weights,
    gradients: Weights,
    microbatches: Batch,
    seeds: Seeds,
    shared: Batch | None = None,
) -> tuple[Weights, Reports, PyTree]:
    """(gradients in gradient placement, reports of the loss, `LayerLoop.side`) of this rank, summed over microbatches.

    `weights` are in storage placement; `microbatches` are arrays [microbatch, ...], and `shared` is what each of them
    has besides; `gradients` are the zeros in gradient placement that gradients accumulate in.
    """
    operands = Operands(weights, weights[LAYERS], microbatches, seeds, shared or {})
    executor, slots, totals, loop = _Executor(program, stages), program.slots, gradients[LAYERS], stages.loop
    x, tokens = executor.shapes(operands)
    nothing = {name: jnp.float32(0) for name in stages.loss_reports}
    carry = Carry(
        stash=loop.stash(operands.layers, x, tokens, slots["stash"]),
        side=loop.side(operands.layers, x, tokens, slots["kept"]),
        gradients=gradients,
        reported=vary(nothing, set(AXES) - set(stages.vocab_axes)),
        **buffers(slots, x),
    )
    if program.holds:
        carry = carry.with_layers(stages.chunks.zeros(operands.layers, slots["gradients"], gradients=True))
        operands = operands._replace(layers=stages.chunks.zeros(operands.layers, slots["weights"]))
    for part in program.loops:
        totals, carry, operands = executor.between(part.first, totals, carry, operands)
        tick = lambda run, row, carry, operands=operands: executor.tick(run, row, carry, operands)
        carry = executor.loop_over(part, tick, carry)
    totals, carry, _ = executor.between(program.ticks, totals, carry, operands)
    carry = carry.with_layers(totals) if program.holds else carry
    return carry.gradients, carry.reported, carry.side


def evaluate[Result](
    program: PipelineProgram,
    stages: Stages,
    weights: Weights,
    microbatches: Batch,
    result: Callable[[jax.Array, Batch], Result],
    shared: Batch | None = None,
) -> Result:
    """`result(output of the last chunk, microbatch)`, summed over the microbatches, for a program of forwards alone.

    The result is a tree of arrays. It is counted on the last chunk's rank and zero on the others, or counted on all
    where they share the vocabulary.
    """
    operands, inputs = Operands(weights, weights[LAYERS], microbatches, None, shared or {}), Inputs(program, stages)
    x, _ = inputs.shapes(operands)
    first = lambda: inputs.microbatch(operands, jnp.int32(0))
    like = jax.eval_shape(lambda: result(vary(jnp.zeros(x.shape, x.dtype)), first()))
    nothing = lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype), leaf.manual_axis_type.varying)
    carry = buffers(program.slots, x)["arrivals"], jax.tree.map(nothing, like)

    def tick(run: Run, row: Row, carry: tuple[jax.Array, Result]) -> tuple[jax.Array, Result]:
        arrivals, total = carry
        data = inputs.microbatch(operands, row["f_microbatch"])
        x = inputs.input(row, operands, arrivals, None)
        chunk = Chunk(operands.layers, row["f_chunk"], row["f_chunk"])
        y = stages.loop.run(chunk, x, stages.token_context(data))
        if run.head:
            last = (row["f_counts"] & row["f_last"]) == 1
            new = result(inputs.shared(y, last), inputs.last(row, operands, "f"))
            mine = True if inputs.shares_vocabulary else last
            total = jax.tree.map(lambda so_far, value: so_far + _where(mine, value), total, new)
        return inputs.arrived(run, "y", row, y, arrivals), total

    for part in program.loops:
        carry = inputs.loop_over(part, tick, carry)
    return carry[1]


class _Executor(Inputs):
    """The actions of training."""

    def between(self, tick: int, totals: Arrays, carry: Carry, operands: Operands) -> tuple[Arrays, Carry, Operands]:
        """(`totals` with the gradients of chunks that are complete before `tick`, the carry without them, what is given
        with the weights of the chunks that are held from then on)."""
        for window in self.program.releases.get(tick, []):
            layers = carry.gradients[LAYERS]
            layers, totals = self.stages.chunks.release(layers, window.slot, totals, window.chunk)
            carry = carry.with_layers(layers)
        for window in self.program.loads.get(tick, []):
            stored = operands.weights[LAYERS]
            layers = self.stages.chunks.load(operands.layers, window.slot, stored, window.chunk, carry.arrivals)
            operands = operands._replace(layers=layers)
        return totals, carry, operands

    # ---- one tick

    def tick(self, run: Run, row: Row, carry: Carry, operands: Operands) -> Carry:
        y = g = None
        if Kind.FORWARD in run.kinds:
            y, carry = self._act(row["f_counts"], "forward", row, carry, operands)
        if Kind.BACKWARD in run.kinds:
            dy = read_slot(carry.cotangents, row["b_cotangent"])
            if run.head:
                g, carry = self._act(row["b_counts"] & row["b_last"], "loss", row, carry, operands)
                dy = jnp.where(row["b_last"] == 1, g, dy)
            g, carry = self._act(row["b_counts"], "backward", row | {"b_dy": dy}, carry, operands)
            # Later operations overwrite what was read here; without this barrier, XLA copies the whole buffer.
            stash, g = lax.optimization_barrier((carry.stash, g))
            carry = carry._replace(stash=stash)
        if Kind.WEIGHT in run.kinds:
            _, carry = self._act(row["w_counts"], "weight", row, carry, operands)
            side, layers = lax.optimization_barrier((carry.side, carry.gradients[LAYERS]))
            carry = carry.with_layers(layers)._replace(side=side)
        if y is not None:
            carry = carry._replace(arrivals=self.arrived(run, "y", row, y, carry.arrivals))
        if g is not None:
            carry = carry._replace(cotangents=self.arrived(run, "g", row, g, carry.cotangents))
        return carry

    @cached_property
    def _actions(self) -> dict[str, Act]:
        """The operations of a tick, each traced once for all runs of ticks."""
        actions: dict[str, Act] = {
            "forward": self._forward,
            "loss": self._loss,
            "backward": self._backward,
            "weight": self._weight,
        }
        return {name: jax.jit(act, inline=True) for name, act in actions.items()}

    def _act(self, valid: jax.Array, name: str, row: Row, carry: Carry, operands: Operands) -> tuple[PyTree, Carry]:
        """(value, carry) of an action.

        In a branching program a rank whose action is not `valid` leaves it out, and has zeros for the value.
        """
        action = self._actions[name]
        if not self.program.branching:
            return action(row, carry, operands)

        def act(carry: Carry) -> tuple[PyTree, Carry]:
            value, after = action(row, carry, operands)
            return vary(value), after

        act = jax.jit(act, inline=True)
        program, (like, _) = jax.make_jaxpr(act, return_shape=True)(carry)
        refuse_permutes(program.jaxpr)
        skip = lambda carry: (jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like), carry)
        return lax.cond(valid == 1, act, skip, carry)

    def _forward(self, row: Row, carry: Carry, operands: Operands) -> tuple[jax.Array, Carry]:
        """The output of a chunk, and the carry."""
        data = self.microbatch(operands, row["f_microbatch"])
        x = self.input(row, operands, carry.arrivals, carry.stash)
        chunk, saved = self._chunk(operands.layers, row, "f", "weights"), Saved(carry.stash, row["f_slot"])
        tokens, valid = self.stages.token_context(data), row["f_counts"] == 1
        y, stash, side = self._loop.forward(chunk, x, tokens, saved, carry.side, valid)
        outputs = put(carry.outputs, y, row["f_output"], (row["f_counts"] & row["f_last"]) == 1)
        return y, carry._replace(stash=stash, outputs=outputs, side=side)

    def _loss(self, row: Row, carry: Carry, operands: Operands) -> tuple[jax.Array, Carry]:
        """Loss of the last chunk's output: its gradients added up, and the cotangent of the output."""
        valid = (row["b_counts"] & row["b_last"]) == 1
        data = self.last(row, operands, "b")
        assert operands.seeds is not None, "a backward starts from the cotangent of the objective"

        def objective(accumulators: Weights, y: jax.Array) -> tuple[jax.Array, Reports]:
            return self.stages.loss(operands.weights, accumulators, self.shared(y, valid), data)

        # The accumulators are zeros by contract; the accumulated values stand in for them, and are not read.
        parts = {part: tree for part, tree in carry.gradients.items() if part != LAYERS}
        value, pullback, reports = jax.vjp(objective, parts, read_slot(carry.outputs, row["b_output"]), has_aux=True)
        new, g = pullback(vary(operands.seeds.objective.astype(value.dtype), varying_axes(value)))
        with jax.named_scope("gradients"):
            mine = True if self.shares_vocabulary else valid
            parts = jax.tree.map(lambda total, a: total + _where(mine, a), parts, new)
        reported = {name: total + _where(mine, reports[name]) for name, total in carry.reported.items()}
        return g, carry._replace(gradients=carry.gradients | parts, reported=reported)

    def _backward(self, row: Row, carry: Carry, operands: Operands) -> tuple[jax.Array, Carry]:
        data = self.microbatch(operands, row["b_microbatch"])
        valid = row["b_counts"] == 1
        assert operands.seeds is not None, "a backward starts from the cotangent of the objective"
        several = jax.tree.leaves(operands.microbatches)[0].shape[0] > 1
        dx, layers, side = self._loop.backward(
            self._chunk(operands.layers, row, "b", "weights"),
            Cotangents(row["b_dy"], operands.seeds.reports),
            self.stages.token_context(data),
            Saved(carry.stash, row["b_slot"]),
            Accumulator(
                self._chunk(carry.gradients[LAYERS], row, "b", "gradients"),
                valid,
                fresh=row["b_microbatch"] == 0 if several else True,
                taps_slot=row["b_kept"],
            ),
            carry.side,
        )
        carry = carry.with_layers(layers)
        into_embedding = jnp.where(valid & (row["b_first"] == 1), dx, 0)
        first = self.first(row, operands, "b")
        gradients = self.stages.embed_gradients(operands.weights, first, into_embedding, carry.gradients)
        return dx, carry._replace(gradients=gradients, side=side)

    def _weight(self, row: Row, carry: Carry, operands: Operands) -> tuple[tuple[()], Carry]:
        assert not self.program.holds, "a schedule that splits the backward comes back to a chunk after others"
        chunk = self._chunk(carry.gradients[LAYERS], row, "w", "weights")
        into = Accumulator(chunk, row["w_counts"] == 1, taps_slot=row["w_kept"])
        tokens = self.stages.token_context(self.microbatch(operands, jnp.int32(0)))  # of which it reads no tokens
        return (), carry.with_layers(self._loop.weight_gradients(operands.layers, tokens, into, carry.side))

    @cached_property
    def _loop(self) -> Layers:
        """The layers, as training runs them."""
        return self.stages.chunks.loop if self.program.holds else self.stages.loop

    def _chunk(self, stack: Arrays | None, row: Row, kind: str, buffer: str) -> Chunk:
        """The chunk of this tick's action, in the stack of all chunks or of those that are held."""
        chunk = row[f"{kind}_chunk"]
        return Chunk(stack, chunk, row[f"{kind}_{buffer}"] if self.program.holds else chunk)


def _where(valid: jax.Array | bool, value: jax.Array) -> jax.Array:
    return value if valid is True else jnp.where(valid, value, 0)
