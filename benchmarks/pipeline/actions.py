"""Measures the time of a pipeline's actions on this mesh, without the executor.

Each program does one action over and over on all ranks at once, as often as an argument says: the time of `repeats`
less the time of none, over `repeats`, is that of one action. Where ticks send, the programs send after each action, so
that ranks keep step as they do in ticks; the time of sending alone is taken off again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxpar.layout.stages import stages_of
from jaxpar.mesh.axes import AXES, vary, varying_axes
from jaxpar.mesh.collectives import shift_stage
from jaxpar.mesh.layer_order import Chunk
from jaxpar.mesh.materialize import to_storage, zero_accumulators
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch, DecoderStages
from jaxpar.model.loop.layer_loop import Tokens
from jaxpar.pipeline.timing.durations import Durations
from jaxpar.runtime.passes import Accumulator, Cotangents, Saved, Side
from jaxpar.training.step.train_step import TrainStep

SLOTS = 2
"""Slots of the stash, and of the taps of a split backward: more than one, so that they are indexed as in a schedule."""

SENDS = ("forward", "backward")
"""Actions that are measured with a transfer after each."""


class Action(NamedTuple):
    """One kind of action, as a program."""

    run: Callable[[int], Any]
    """Does the action so often, and returns arrays."""
    repeats: int


class _Rank(NamedTuple):
    """What an action works with on one rank."""

    stages: DecoderStages
    weights: Weights
    batch: Batch
    """[microbatch, ...]"""
    x: jax.Array
    """A chunk's input."""
    tokens: Tokens

    def microbatch(self, turn: jax.Array) -> Batch:
        number = turn % len(self.batch["tokens"])
        return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, number, keepdims=False), self.batch)

    def chunk(self, stack: Weights, turn: jax.Array) -> Chunk:
        number = turn % len(self.stages.order.first_slots[0])
        return Chunk(stack, number, number)

    def side(self, taps: int) -> Side:
        """Zeros of a pass's other results, with so many slots for the taps of split backwards."""
        return self.stages.loop.side(self.weights["layers"], self.x, self.tokens, taps)

    def accumulators(self, part: str) -> Weights:
        return zero_accumulators(self.weights[part], self.stages.placements, part=part)


def end_actions(step: TrainStep, master: Weights, batch: Batch, *, repeats: int) -> dict[str, Action]:
    """What does not depend on the chunk: `embedding`, `embedding_gradients`, `head` (with the loss), `transfer`."""
    bodies = {
        "embedding": _embedding,
        "embedding_gradients": _embedding_gradients,
        "head": _head,
        "transfer": _transfer,
    }
    cheap = ("embedding", "embedding_gradients", "transfer")
    programs = {name: _program(step, body) for name, body in bodies.items()}
    return {
        name: Action(lambda count, run=run: run(count, master, batch, ()), repeats * 4 if name in cheap else repeats)
        for name, run in programs.items()
    }


def chunk_actions(step: TrainStep, master: Weights, batch: Batch, *, repeats: int) -> dict[str, Action]:
    """`forward` and `backward` of a chunk of `step`, and its `weight` where the schedule splits the backward."""
    forward, backward = _program(step, _forward), _program(step, _backward)
    _, stash = forward(SLOTS, master, batch, ())
    actions = {
        "forward": Action(lambda count: forward(count, master, batch, ()), repeats),
        "backward": Action(lambda count: backward(count, master, batch, stash), repeats),
    }
    if step.layout.schedule.splits_backward:
        weight = _program(step, _weight)
        side = backward(SLOTS, master, batch, stash)[2]
        actions["weight"] = Action(lambda count: weight(count, master, batch, side), repeats)
    return actions


def buffers(step: TrainStep, master: Weights, batch: Batch) -> Callable[[], Any]:
    """Makes what a step keeps between ticks, with as many slots as its program has, and touches all of it.

    It is memory that the system has to allocate for each step, and so takes time apart from the ticks.
    """
    slots = step.layout.program.slots

    def make(rank: _Rank, count: jax.Array, given: Any) -> Any:
        loop, layers = rank.stages.loop, rank.weights["layers"]
        zeros = [
            loop.stash(layers, rank.x, rank.tokens, slots["stash"]),
            rank.side(slots["kept"]).taps,
            [jnp.zeros((slots[name], *rank.x.shape)) for name in ("arrivals", "cotangents", "outputs")],
        ]
        # A loop whose length is not known keeps the compiler from leaving out what is never read.
        fill = lambda turn, trees: jax.tree.map(lambda a: lax.dynamic_update_index_in_dim(a, a[0] + 1, turn, 0), trees)
        return jax.tree.map(lambda a: a[(0,) * a.ndim], lax.fori_loop(0, count, fill, zeros))

    program = _program(step, make)
    return lambda: program(0, master, batch, ())


def durations(ends: Mapping[str, float], chunk: Mapping[str, float]) -> Durations:
    """Durations for the simulator, from the seconds of the actions of `end_actions` and `chunk_actions`.

    All ranks embed in each F, and sum up the embedding's gradient in each B. CPU devices send with the cores that
    compute, so nothing overlaps.
    """
    weight = chunk.get("weight", 0.0)
    return Durations(
        forward=chunk["forward"] + ends["embedding"],
        backward=chunk["backward"] + ends["embedding_gradients"] + weight,
        weight=weight,
        head=ends["head"],
        transfer=ends["transfer"],
        overlap=False,
    )


def _program(step: TrainStep, body: Callable[[_Rank, jax.Array, Any], Any]) -> Callable[..., Any]:
    """Compiled (count, master weights, batch, what an earlier program gave) -> arrays of `body`."""
    shards = PartitionSpec(AXES)

    def program(count: jax.Array, master: Weights, batch: Batch, given: Any) -> Any:
        stages, weights = stages_of(step.layout, train=True), to_storage(master, step.layout.placements)
        data = jax.tree.map(lambda a: a[0], batch)
        rank = _Rank(stages, weights, batch, stages.embed(weights, data), stages.token_context(data))
        return jax.tree.map(lambda a: vary(a).reshape(a.shape or (1,)), body(rank, count, given))

    layouts = PartitionSpec(), step.layout.master, step.layout.batch.partitions, shards
    return step.compiled(program, layouts, shards)


def _forward(rank: _Rank, count: jax.Array, given: Any) -> Any:
    loop, layers = rank.stages.loop, rank.weights["layers"]

    def once(turn: jax.Array, carry: Any) -> Any:
        x, stash, side = carry
        tokens = rank.stages.token_context(rank.microbatch(turn))
        y, stash, side = loop.forward(rank.chunk(layers, turn), x, tokens, Saved(stash, turn % SLOTS), side)
        return shift_stage(y, 1, wrap=True), stash, side

    begin = rank.x, loop.stash(layers, rank.x, rank.tokens, SLOTS), rank.side(0)
    return lax.fori_loop(0, count, once, begin)[:2]


def _backward(rank: _Rank, count: jax.Array, stash: Any) -> Any:
    loop, layers = rank.stages.loop, rank.weights["layers"]

    def once(turn: jax.Array, carry: Any) -> Any:
        dy, gradients, side = carry
        tokens, slot = rank.stages.token_context(rank.microbatch(turn)), turn % SLOTS
        into = Accumulator(rank.chunk(gradients, turn), vary(turn < count), taps_slot=slot)
        dx, gradients, side = loop.backward(
            rank.chunk(layers, turn), Cotangents(dy), tokens, Saved(stash, slot), into, side
        )
        return shift_stage(dx, -1, wrap=True), gradients, side

    side = rank.side(SLOTS if rank.stages.split_backward else 0)
    return lax.fori_loop(0, count, once, (rank.x, rank.accumulators("layers"), side))


def _weight(rank: _Rank, count: jax.Array, side: Any) -> Any:
    def once(turn: jax.Array, gradients: Weights) -> Weights:
        into = Accumulator(rank.chunk(gradients, turn), vary(turn < count), taps_slot=turn % SLOTS)
        return rank.stages.loop.weight_gradients(rank.weights["layers"], rank.tokens, into, side)

    return lax.fori_loop(0, count, once, rank.accumulators("layers"))


def _head(rank: _Rank, count: jax.Array, given: Any) -> Any:
    def once(turn: jax.Array, carry: Any) -> Any:
        y, totals, reported = carry
        loss = lambda accumulators, y: rank.stages.loss(rank.weights, accumulators, y, rank.microbatch(turn))
        value, pullback, reports = jax.vjp(loss, totals, y, has_aux=True)
        new, dy = pullback(vary(jnp.ones_like(value), varying_axes(value)))
        totals = jax.tree.map(lambda total, a: total + jnp.where(vary(turn < count), a, 0), totals, new)
        return dy, totals, reported + reports["loss"]

    ends = {part: rank.accumulators(part) for part in rank.weights if part != "layers"}
    reported = vary(jnp.float32(0), set(AXES) - set(rank.stages.vocab_axes))
    return lax.fori_loop(0, count, once, (rank.x, ends, reported))


def _embedding(rank: _Rank, count: jax.Array, given: Any) -> Any:
    def once(turn: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(turn % SLOTS == 0, rank.stages.embed(rank.weights, rank.microbatch(turn)), x)

    return lax.fori_loop(0, count, once, rank.x)


def _embedding_gradients(rank: _Rank, count: jax.Array, given: Any) -> Any:
    def once(turn: jax.Array, gradients: Weights) -> Weights:
        return rank.stages.embed_gradients(rank.weights, rank.microbatch(turn), rank.x, gradients)

    return lax.fori_loop(0, count, once, {"embedding": rank.accumulators("embedding")})


def _transfer(rank: _Rank, count: jax.Array, given: Any) -> Any:
    return lax.fori_loop(0, count, lambda _, x: shift_stage(x, 1, wrap=True), rank.x)
