"""A step on islands: each takes a local step, and the outer optimizer updates the weights that they share.

The only messages between islands are those of outer gradients. With `islands.delay` the message depends on nothing of
the step that it is sent in, so that it runs beside the step's forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpar.layout.islands import EagerState, OuterState, entered, left, stacked, with_eager, without_eager
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_arguments import StepArguments
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.parameters import Weights
from jaxpar.model.decoder import Batch
from jaxpar.optim.outer import (
    OuterArguments,
    eager_move,
    mixed,
    outer_gradient,
    outer_update,
)
from jaxpar.training.residency.fragments import Fragments, Rows, Steps, apart
from jaxpar.training.residency.island_message import PackedMessage, mean_gradients, send_gradients, zero_parcels
from jaxpar.training.residency.weight_update import Measure, Measured, UpdateFacts

type Update = Callable[[TrainState, Weights, UpdateFacts], TrainState]


@dataclass(frozen=True)
class IslandStep:
    """The step of `OnDevice.train` on islands, on the parts of one device."""

    layout: StepLayout
    measure: Measure
    updated: Update

    def __call__(self, state: TrainState, batch: Batch, arguments: StepArguments) -> tuple[TrainState, Any]:
        """The state of all islands after a step, and the metrics of each."""
        island, outer = entered(state)
        if self.layout.config.islands.eager:
            return self._eager_step(island, outer, batch, arguments)
        delay, done = self.layout.config.islands.delay, state.step + 1
        measure = lambda: self.measure(island, batch, arguments)
        if delay:
            gradient = lambda: self._gradient(outer.weights, island.master, state.step)
            measured, message = self._beside(measure, gradient, outer, state.step)
            new = self._after(island, measured)
            outer = self._outer(outer, lambda: message, state.step, arguments.outer)
        else:
            measured = measure()
            new = self._after(island, measured)
            message = lambda: self._message(self._gradient(outer.weights, new.master, done), beside=False)
            outer = self._outer(outer, message, done, arguments.outer)
        mix = lambda master: self._mixed(master, outer, done - delay, arguments.outer)
        new = new._replace(master=self._change_if_sent(done - delay, mix, new.master))
        return left(new, outer), stacked(measured.metrics)

    def _eager_step(
        self, island: TrainState, outer: OuterState, batch: Batch, arguments: StepArguments
    ) -> tuple[TrainState, Any]:
        """Steps of `islands.eager`: the island takes its outer gradient before a step, which runs beside its
        message."""
        island, eager = without_eager(island)
        master, eager, gradient = self._started(island.master, eager, outer, island.step, arguments.outer)
        island = island._replace(master=master)
        measure = lambda: self.measure(island, batch, arguments)
        measured, message = self._beside(measure, lambda: gradient, outer, island.step)
        new = with_eager(self._after(island, measured), eager)
        return left(new, self._outer(outer, lambda: message, island.step, arguments.outer)), stacked(measured.metrics)

    def _after(self, island: TrainState, measured: Measured) -> TrainState:
        """The island after the update of its optimizer."""
        new = self.updated(island, measured.gradients, measured.facts)
        return measured.following._replace(master=new.master, optimizer=new.optimizer)

    # ---- when

    @cached_property
    def _fragments(self) -> Fragments:
        return Fragments(self.layout)

    def _change_if_sent[Tree](self, step: Steps, change: Callable[[Tree], Tree], tree: Tree) -> Tree:
        """`change(tree)` where a fragment is sent after `step` steps, else the tree; the same on all devices."""
        alike = lambda old: jax.tree.map(lambda new, old: new.astype(old.dtype), change(old), old)
        return lax.cond(self._fragments.sent(step), alike, lambda tree: tree, tree)

    def _beside(
        self, measure: Callable[[], Measured], gradient: Callable[[], list[Rows]], outer: OuterState, step: Steps
    ) -> tuple[Measured, list[PackedMessage]]:
        """Forward and backward with the message of the fragment that was taken before them, if one was.

        A collective in a separate branch would not run beside what is outside of it, so the branches have both; there
        is one where each step sends.
        """
        send = lambda: (measure(), self._message(gradient(), beside=True))
        skip = lambda: (measure(), zero_parcels(self._fragments.zeros(outer.weights, step), self._wire))
        always = self._fragments.sends_each_step
        measured, message = send() if always else lax.cond(self._fragments.sent(step), send, skip)
        # XLA waits for a message as soon as something reads it: nothing does before the backward is done.
        message, gradients = lax.optimization_barrier((message, measured.gradients))
        return measured._replace(gradients=gradients), message

    # ---- what

    def _gradient(self, start: Weights, end: Weights, step: Steps) -> list[Rows]:
        """This island's outer gradient of the fragment that is taken after `step` steps."""
        with jax.named_scope("outer_gradient"):
            return self._fragments.map_rows(outer_gradient, start, self._fragments.taken(end, step), step)

    def _message(self, gradient: list[Rows], *, beside: bool) -> list[PackedMessage]:
        """The outer gradients of all islands."""
        with jax.named_scope("outer_gradient"):
            return send_gradients(gradient, self._wire, beside=beside)

    @property
    def _wire(self) -> str | None:
        return self.layout.config.islands.wire

    def _started(
        self, master: Weights, eager: EagerState, outer: OuterState, step: Steps, arguments: OuterArguments
    ) -> tuple[Weights, EagerState, list[Rows]]:
        """An island's weights at the start of a round of the fragment that was taken before this step, if one was, and
        its outer gradient."""
        nesterov, islands = self.layout.config.islands.outer.nesterov, self.layout.plan.axes.islands

        def started(master: Weights, eager: EagerState) -> tuple[Weights, EagerState, list[Rows]]:
            gradient = self._gradient(eager.start, master, step)
            move = apart(lambda momentum, gradient: eager_move(momentum, gradient, arguments, nesterov, islands))
            each = zip(self._fragments.taken(eager.momentum, step), gradient, strict=True)
            moves, momentum = zip(*(move(*one) for one in each), strict=True)
            weights = self._fragments.map_rows(jnp.add, outer.weights, moves, step)
            put = lambda old, rows: self._fragments.put(old, rows, step)
            return put(master, weights), EagerState(put(eager.start, weights), put(eager.momentum, momentum)), gradient

        nothing = lambda master, eager: (master, eager, self._fragments.zeros(master, step))
        return lax.cond(self._fragments.sent(step), started, nothing, master, eager)

    def _outer(
        self, outer: OuterState, message: Callable[[], list[PackedMessage]], step: Steps, arguments: OuterArguments
    ) -> OuterState:
        """The outer state after the mean outer gradient of the fragment that is taken after `step` steps, if one is."""
        nesterov = self.layout.config.islands.outer.nesterov

        update = lambda weights, momentum, gradient: outer_update(weights, momentum, gradient, arguments, nesterov)

        def change(outer: OuterState) -> OuterState:
            mean = mean_gradients(message(), self._fragments.zeros(outer.weights, step), self._wire)
            return OuterState(*self._fragments.changed(outer, apart(update), mean, step))

        return self._change_if_sent(step, change, outer)

    def _mixed(self, master: Weights, outer: OuterState, step: Steps, arguments: OuterArguments) -> Weights:
        mix = apart(lambda shared, local: mixed(local, shared, arguments.mix))
        local = self._fragments.taken(master, step)
        return self._fragments.put(master, self._fragments.map_rows(mix, outer.weights, local, step), step)
