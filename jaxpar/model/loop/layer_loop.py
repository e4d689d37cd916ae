"""One loop runs the stacked layers of a pipeline chunk: forward, backward, and the weights' gradients apart.

What autodiff of a plain scan would get wrong, and this does not:

- **No gathered weight is a residual.** Under ZeRO-3 a layer's weights are gathered at its entry, forward and again
  backward; between the two only the shards exist. (Autodiff would keep every gathered weight alive.)
- **The next layer's weights are gathered while this layer computes**, in both directions and across kinds of layers, so
  that the gather hides behind the matmuls (`jaxpar.model.loop.walk`).
- **Where weights come from and gradients go is a store** (`jaxpar.runtime.passes`). Gradients are reduced and added to
  what has accumulated as soon as a layer has gone backward.
- **What is kept between forward and backward is an argument**: buffers with as many slots as the schedule needs,
  written and read in place. A slot holds, for each layer, its input and what the remat policy saves or offloads.
- **Layers of a chunk may be of several kinds and keep different things**: equal neighbours are one loop, units of a
  pattern another one around it, and layers of a kind that keep the same share a `Stash`.
- **What is in host memory is fetched one layer ahead**, together with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

from jaxpar.memory.buffers import entry_at, entry_on_device, put, row_major, stacked
from jaxpar.memory.streaming import to_host
from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import PADDING, Chunk, Index, LayerOrder
from jaxpar.mesh.parameters import Arrays
from jaxpar.model.loop.layer_stack import Keep, LayerStack, Step, next_block_tie
from jaxpar.model.loop.stash import Stash, Stashes, fetch, put_x, written
from jaxpar.model.loop.walk import Site, walk
from jaxpar.runtime.passes import Accumulator, Context, Cotangents, Report, Saved, Side, Stream, Tokens, Valid
from jaxpar.runtime.records import Records, with_layer
from pallas_kernels.vjp_parts import residuals_of

type StepOf = Callable[[LayerStack, int, Keep], Step]
"""(layers of a kind, the first row of those of a chunk that keep the same, what they keep) -> their work in a walk."""


@dataclass(frozen=True, eq=False)
class LayerLoop:
    """Runs the layers of one pipeline rank."""

    stacks: Mapping[str, LayerStack]
    """The layers of each kind."""
    order: LayerOrder
    """The order of the model's layers in the stacks, and the slots of a chunk."""
    unroll: int = 1
    """Layers in a turn of the loop, where the next ones are fetched meanwhile."""
    before: int | None = None
    """The index of the block of a layer before whose products the next first block must have its weights, if any."""

    def map_stacks(self, function: Callable[..., Arrays], *layers: Mapping[str, PyTree]) -> Arrays:
        """`function(stack, ...)` of the part for each kind of `layers`."""
        return {kind: function(stack, *(tree[kind] for tree in layers)) for kind, stack in self.stacks.items()}

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of what layers report."""
        return tuple(dict.fromkeys(name for stack in self.stacks.values() for name in stack.program.reports))

    # ---- buffers

    def stash(self, weights: Arrays, x: Stream, tokens: Tokens, slots: int) -> Stashes:
        """Buffers for `slots` passes through a chunk, given shapes of weights, a chunk's input and its tokens.

        Without pipeline ranks each pass forward fills a slot. With them, a tick in which a rank has nothing to do reads
        what may not be written, so that buffers are zeros.
        """
        fills = lax.axis_size("pipe") == 1 and not self.order.padded

        def empty(stack: LayerStack, keep: Keep) -> Stash:
            def saved(weights: Arrays, x: Stream, tokens: Context) -> Stash:
                arguments = stack.load_any(weights), x, vary(jnp.int32(0)), tokens
                _, pullback = stack.programs[keep.variant].vjp(keep.policy, *arguments)
                return Stash(to_host(x) if keep.offload_inputs else x, residuals_of(pullback))

            arguments = weights[stack.name], x, tokens[stack.name]
            return stacked((slots, keep.layers), saved, *arguments, written=fills)

        with jax.named_scope("saved_activations"):
            return {
                (kind, first): empty(stack, keep)
                for kind, stack in self.stacks.items()
                for first, keep in dict(stack.keep_by_row).items()
            }

    def side(self, weights: Arrays, x: Stream, tokens: Tokens, slots: int) -> Side:
        """Zeros, for shapes as in `stash`; `slots` are those of split backwards."""
        with jax.named_scope("kept_for_weights"):
            taps = lambda stack, weights, tokens: stack.taps(slots, weights, x, tokens)
            taps = self.map_stacks(taps, weights, tokens) if slots else None
        observes = max(program.observes for stack in self.stacks.values() for program in stack.programs.values())
        layers = sum(len(stack.layers) for stack in self.order.stacks.values())
        return Side(self._no_metrics(), taps, vary(jnp.zeros((layers, observes))) if observes else None)

    def _no_metrics(self) -> Report:
        return {name: vary(jnp.float32(0)) for name in self.reports}

    def input_of(self, saved: Saved, chunk: Index) -> Stream:
        """The saved input of a chunk of this rank: that of its first layer."""

        def first(slot: int) -> Stream:
            kind, row = self.order.slots[slot]
            first, _ = self.stacks[kind].keep_by_row[row]
            return entry_on_device(saved.stashes[kind, first].inputs, saved.slot, row - first)

        slots = self.order.first_slots
        some, *others = sorted(set(slots.ravel().tolist()))
        x = first(some)
        local_slot = jnp.asarray(slots, jnp.int32)[lax.axis_index("pipe"), chunk] if others else None
        for slot in others:
            x = jnp.where(local_slot == slot, first(slot), x)
        return x

    # ---- walks over a chunk

    def run(self, weights: Chunk, x: Stream, tokens: Tokens) -> Stream:
        """Forward through a chunk, saving nothing."""
        return self.recorded(weights, x, tokens, {})[0]

    def recorded(self, weights: Chunk, x: Stream, tokens: Tokens, records: Records) -> tuple[Stream, Records]:
        """`run`, and `records` with those of the chunk's layers; nothing is recorded where it is empty."""

        def step_of(stack: LayerStack, _: int, keep: Keep) -> Step:
            def step(w: Arrays, nothing: None, row: jax.Array, carry: tuple[Stream, Records]) -> tuple[Stream, Records]:
                x, records = carry
                index, new = stack.order.local(weights.chunk)[row], {} if records else None
                y, _ = stack.programs[keep.variant].run(w, x, index, tokens[stack.name], new)
                after = y, with_layer(records, new or {}, index)
                return jax.tree.map(partial(stack.skip_padding, index), after, carry)

            return Step(step)

        return self._walk(weights, step_of, (x, records), saves=False)

    def forward(
        self, weights: Chunk, x: Stream, tokens: Tokens, saved: Saved, side: Side, valid: Valid = True
    ) -> tuple[Stream, Stashes, Side]:
        """Forward through a chunk: (x, stashes, side).

        What its backward needs is saved; what its layers report is added to `side` where `valid`.
        """

        def step_of(stack: LayerStack, first: int, keep: Keep) -> Step:
            def step(w: Arrays, nothing: None, row: jax.Array, carry: PyTree) -> PyTree:
                x, stashes, reported = carry
                layer_index = stack.order.local(weights.chunk)[row]
                stash, at_row = stashes[stack.name, first], (saved.slot, row - first)
                inputs, x = put_x(stash.inputs, x, *at_row)
                program = stack.programs[keep.variant]
                (y, report), pullback = program.vjp(keep.policy, w, x, layer_index, tokens[stack.name])
                with jax.named_scope("saved_activations"):
                    stash = Stash(inputs, put(stash.residuals, row_major(residuals_of(pullback)), *at_row))
                new = {
                    name: reported[name] + stack.skip_padding(layer_index, value, 0) for name, value in report.items()
                }
                stashes = {**stashes, (stack.name, first): stash}
                return stack.skip_padding(layer_index, y, x), stashes, {**reported, **new}

            return Step(step)

        x, stashes, new = self._walk(weights, step_of, (x, saved.stashes, self._no_metrics()))
        x, stashes = written(x, stashes)
        metrics = {name: total + jnp.where(valid, new[name], 0) for name, total in side.metrics.items()}
        return x, stashes, side._replace(metrics=metrics)

    def backward(
        self, weights: Chunk, cotangents: Cotangents, tokens: Tokens, saved: Saved, into: Accumulator, side: Side
    ) -> tuple[Stream, Arrays, Side]:
        """Backward through a chunk, from what its forward saved: (dx, gradients, side).

        Gradients of the chunk's weights are added up as `into` states; if the backward is split these are the gradients
        of all but the matrices, for which `into.taps_slot` of the taps fills.
        """
        layers, dy = weights.stack, cotangents.y
        for kind, stack in self.stacks.items():
            layer_weights, dy = stack.store.again(layers[kind], dy)
            layers = layers | {kind: layer_weights}
        weights = weights._replace(stack=layers)

        def step_of(stack: LayerStack, first: int, keep: Keep) -> Step:
            kind, program, stash = stack.name, stack.programs[keep.variant], saved.stashes[stack.name, first]
            of_report = {name: vary(cotangents.reports.get(name, jnp.float32(0))) for name in program.reports}

            def step(w: Arrays, fetched: PyTree, row: jax.Array, carry: PyTree) -> PyTree:
                dx, totals, taps, observed = carry
                layer_index = stack.order.local(weights.chunk)[row]
                x, residuals = row_major(entry_at(stash, saved.slot, row - first, instead=fetched))
                pullback = program.pullback(keep.policy, residuals, w, x, layer_index, tokens[kind])
                dw, through, new_taps, *_, new = pullback((dx, of_report))
                totals = totals | {kind: stack.accumulate(totals[kind], dw, row, layer_index, into)}
                if taps is not None:
                    with jax.named_scope("kept_for_weights"):
                        taps = taps | {kind: put(taps[kind], new_taps, into.taps_slot, row)}
                if observed is not None and program.observes:
                    valid = into.valid & (layer_index != PADDING)
                    observed = observed.at[layer_index].max(jnp.where(valid, new, 0))
                return stack.skip_padding(layer_index, vary(through), dx), totals, taps, observed

            return Step(step, lambda row: fetch(stash, saved.slot, row - first))

        carry = vary(dy), into.chunk.stack, side.taps, side.observed
        dx, totals, taps, observed = self._walk(weights, step_of, carry, reverse=True)
        return dx, totals, side._replace(taps=taps, observed=observed)

    def weight_gradients(self, weights: Arrays, tokens: Tokens, into: Accumulator, side: Side) -> Arrays:
        """Add the gradients of a chunk's matrices, from `into.taps_slot` of what a split backward left."""
        saved = side.taps
        assert saved is not None, "a backward was split"

        def step_of(stack: LayerStack, _: int, keep: Keep) -> Step:
            kind, program = stack.name, stack.programs[keep.variant]
            like = jax.eval_shape(stack.load_any, weights[kind])

            def step(_: Arrays, nothing: None, row: jax.Array, totals: Arrays) -> Arrays:
                layer_index = stack.order.local(into.chunk.chunk)[row]
                with jax.named_scope("weight_gradients"):
                    dw = program.matrix_gradients(
                        like, entry_at(saved[kind], into.taps_slot, row), layer_index, tokens[kind]
                    )
                return totals | {kind: stack.accumulate(totals[kind], dw, row, layer_index, into)}

            return Step(step, loads=False)

        return self._walk(into.chunk._replace(stack=weights), step_of, into.chunk.stack, saves=False)

    def _walk[Carry](
        self, weights: Chunk, step_of: StepOf, carry: Carry, *, reverse: bool = False, saves: bool = True
    ) -> Carry:
        """Run each layer of a chunk from the first to the last, or all from the last to the first.

        Without `saves`, the work of layers does not depend on what they keep.
        """
        sites = {}

        def site(kind: str, row: int) -> Site:
            stack, padded = self.stacks[kind], bool(self.order.stacks[kind].padded_in_some_chunk[row])
            first, keep = stack.keep_by_row[row]
            key = kind, first if saves else keep.variant, padded
            if key not in sites:
                tie = next_block_tie(stack.blocks, self.before, backward=reverse)
                sites[key] = stack.site(key, weights, first, padded, step_of(stack, first, keep), tie)
            return sites[key]

        slots = [(site(*slot), slot.row) for slot in self.order.slots]
        return walk(slots[::-1] if reverse else slots, carry, self.unroll)
