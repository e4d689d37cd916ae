"""One loop runs the stacked layers of a pipeline chunk: forward, backward, and the weights' gradients apart.

What autodiff of a plain scan would get wrong, and this does not:

- **No gathered weight is a residual.** Under ZeRO-3 a layer's weights are gathered at its entry, forward and again
  backward; between the two only the shards exist. (Autodiff would keep every gathered weight alive.)
- **The next layer's weights are gathered while this layer computes**, in both directions and across kinds of layers, so
  that the gather hides behind the matmuls (`jaxpar.model.loop.walk`).
- **Where weights come from and gradients go is a store** (`jaxpar.runtime.store`). Gradients are reduced and added to
  what has accumulated as soon as a layer has gone backward.
- **What is kept between forward and backward is an argument**: buffers with as many slots as the schedule needs,
  written and read in place. A slot holds, for each layer, its input and what the remat policy saves or offloads.
- **Layers of a chunk may be of several kinds and keep different things**: equal neighbours are one loop, units of a
  pattern another one around it, and layers of a kind that keep the same share a `Stash`.
- **What is in host memory is fetched one layer ahead**, together with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxpar.memory.buffers import at, entry_on_device, in_order, put, stacked
from jaxpar.memory.streaming import to_host
from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import PADDING, Chunk, Index, LayerOrder
from jaxpar.mesh.parameters import Arrays, merge
from jaxpar.model.loop.layer_kind import Keep, LayerKind
from jaxpar.model.loop.layer_stack import LayerStack, Step, tie_to
from jaxpar.model.loop.stash import Stash, Stashes, fetch, put_x, written
from jaxpar.model.loop.walk import Site, walk
from jaxpar.runtime.passes import Accumulator, Context, Cotangents, Report, Saved, Side, Valid
from jaxpar.runtime.store import WeightStore
from pallas_kernels.vjp_parts import residuals_of

type Tokens = Mapping[str, Context]
"""By kind, what its layers need to know about the tokens of a microbatch."""

type Stream = Float[Array, "batch part embed"]
"""The residual stream: a chunk's input or output."""


@dataclass(frozen=True, eq=False)
class LayerLoop:
    """How to run the layers of one pipeline rank."""

    kinds: Mapping[str, LayerKind]
    stores: Mapping[str, WeightStore]
    """The weights and gradients of each kind."""
    order: LayerOrder
    """The order of the model's layers in the stacks, and the slots of a chunk."""
    unroll: int = 1
    """Layers in a turn of the loop, where the next ones are fetched meanwhile."""
    before: int | None = None
    """The index of the block of a layer before whose products the next first block must have its weights, if any."""

    def __post_init__(self) -> None:
        for kind, stack in self.order.stacks.items():
            layers, rows = sum(keep.layers for keep in self.kinds[kind].keeps), stack.rows_per_chunk
            assert layers == rows, f"what they keep is given for {layers} layers, and a chunk has {rows}"

    def stack(self, kind: str) -> LayerStack:
        """The operations of a loop on the stack of a kind."""
        return LayerStack(kind, self.kinds[kind], self.order.stacks[kind], self.stores[kind])

    def by_stack(self, function: Callable[..., Arrays], *layers: Arrays) -> Arrays:
        """`function(stack, ...)` of the part for each kind of `layers`, in their structure."""
        result = layers[0]
        for kind in self.kinds:
            new = function(self.stack(kind), *(tree[kind] for tree in layers))
            result = result | {kind: new}
        return result

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of what layers report."""
        return tuple(dict.fromkeys(name for kind in self.kinds.values() for name in kind.reports))

    # ---- buffers

    def stash(self, weights: Arrays, x: Stream, tokens: Tokens, slots: int) -> Stashes:
        """Buffers for `slots` passes through a chunk, given shapes of weights, a chunk's input and its tokens.

        Without pipeline ranks each pass forward fills a slot. With them, a tick in which a rank has nothing to do reads
        what may not be written, so that buffers are zeros.
        """
        fills = lax.axis_size("pipe") == 1 and not self.order.padded

        def empty(kind: str, keep: Keep) -> Stash:
            stack = self.stack(kind)

            def saved(weights: Arrays, x: Stream, tokens: Context) -> Stash:
                arguments = stack.load_any(weights), x, vary(jnp.int32(0)), tokens
                _, pullback = stack.kind.of(keep).derivative.vjp(keep.policy, *arguments)
                return Stash(to_host(x) if keep.offload_inputs else x, residuals_of(pullback))

            return stacked((slots, keep.layers), saved, weights[kind], x, tokens[kind], written=fills)

        with jax.named_scope("saved_activations"):
            keeps = ((kind, place, keep) for kind, own in self.kinds.items() for place, keep in enumerate(own.keeps))
            return {(kind, place): empty(kind, keep) for kind, place, keep in keeps}

    def side(self, weights: Arrays, x: Stream, tokens: Tokens, slots: int) -> Side:
        """Zeros, for shapes as in `stash`; `slots` are those of split backwards."""
        with jax.named_scope("kept_for_weights"):
            taps = lambda kind: self.stack(kind).taps(slots, weights[kind], x, tokens[kind])
            taps = {kind: taps(kind) for kind in self.kinds} if slots else None
        programs = [program for kind in self.kinds.values() for program in (kind, *kind.variants.values())]
        makers = [program.zeros_observed for program in programs if program.zeros_observed is not None]
        layers = sum(len(stack.layers) for stack in self.order.stacks.values())
        return Side(self._no_metrics(), taps, vary(makers[0](layers)) if makers else None)

    def _no_metrics(self) -> Report:
        return {name: vary(jnp.float32(0)) for name in self.reports}

    def input_of(self, saved: Saved, chunk: Index) -> Stream:
        """The saved input of a chunk of this rank: that of its first layer."""

        def first(place: int) -> Stream:
            kind, row = self.order.slots[place]
            keep = self.kinds[kind].keep_of(row)
            return entry_on_device(saved.stashes[kind, keep].inputs, saved.slot, row - self.kinds[kind].firsts[keep])

        places = self.order.first_slots
        some, *others = sorted(set(places.ravel().tolist()))
        x = first(some)
        own = jnp.asarray(places, jnp.int32)[lax.axis_index("pipe"), chunk] if others else None
        for place in others:
            x = jnp.where(own == place, first(place), x)
        return x

    # ---- walks over a chunk

    def run(self, weights: Chunk, x: Stream, tokens: Tokens) -> Stream:
        """Forward through a chunk, saving nothing."""

        def step_of(stack: LayerStack, keep: Keep, place: int) -> Step:
            def step(w: Arrays, _: None, row: jax.Array, x: Stream) -> Stream:
                number = stack.order.own(weights.chunk)[row]
                y = stack.kind.of(keep).derivative.run(w, x, number, tokens[stack.name])[0]
                return stack.unless_padding(number, y, x)

            return Step(step)

        return self._walk(weights, step_of, x, by=lambda keep: keep.variant)

    def forward(
        self, weights: Chunk, x: Stream, tokens: Tokens, saved: Saved, side: Side, valid: Valid = True
    ) -> tuple[Stream, Stashes, Side, PyTree]:
        """Forward through a chunk: (x, stashes, side, the weights for later passes).

        What its backward needs is saved; what its layers report is added to `side` where `valid`.
        """
        with jax.named_scope("stored_weights"):
            layers = self.by_stack(lambda stack, own: stack.store.room(own), weights.stack)

        def step_of(stack: LayerStack, keep: Keep, place: int) -> Step:
            first = stack.kind.firsts[place]

            def step(w: Arrays, stored: Arrays | None, row: jax.Array, carry: PyTree) -> PyTree:
                x, stashes, reported, layers = carry
                rows = stack.store.keep(layers[stack.name], stored, row)
                layers = layers | {stack.name: rows}
                number = stack.order.own(weights.chunk)[row]
                stash, at_row = stashes[stack.name, place], (saved.slot, row - first)
                inputs, x = put_x(stash.inputs, x, *at_row)
                derivative = stack.kind.of(keep).derivative
                (y, report), pullback = derivative.vjp(keep.policy, w, x, number, tokens[stack.name])
                with jax.named_scope("saved_activations"):
                    stash = Stash(inputs, put(stash.residuals, in_order(residuals_of(pullback)), *at_row))
                stashes = {**stashes, (stack.name, place): stash}
                new = {name: reported[name] + stack.unless_padding(number, own, 0) for name, own in report.items()}
                return stack.unless_padding(number, y, x), stashes, {**reported, **new}, layers

            return Step(step)

        carry = x, saved.stashes, self._no_metrics(), layers
        x, stashes, new, layers = self._walk(weights, step_of, carry)
        x, stashes = written(x, stashes)
        metrics = {name: total + jnp.where(valid, new[name], 0) for name, total in side.metrics.items()}
        later = lambda stack, own, rows: own if rows is None else rows
        return x, stashes, side._replace(metrics=metrics), self.by_stack(later, weights.stack, layers)

    def backward(
        self, weights: Chunk, cotangents: Cotangents, tokens: Tokens, saved: Saved, into: Accumulator, side: Side
    ) -> tuple[Stream, Arrays, Side]:
        """Backward through a chunk, from what its forward saved: (dx, gradients, side).

        Gradients of the chunk's weights are added up as `into` states; if the backward is split these are the gradients
        of all but the matrices, for which `into.taps_slot` of the taps fills.
        """
        stack, dy = weights.stack, cotangents.y
        for kind, store in self.stores.items():
            own, dy = store.again(stack[kind], dy)
            stack = stack | {kind: own}
        weights = weights._replace(stack=stack)

        def step_of(stack: LayerStack, keep: Keep, place: int) -> Step:
            stash, first = saved.stashes[stack.name, place], stack.kind.firsts[place]
            of_report = {name: vary(cotangents.reports.get(name, jnp.float32(0))) for name in stack.kind.reports}

            def step(w: Arrays, fetched: PyTree, row: jax.Array, carry: PyTree) -> PyTree:
                dx, totals, taps, observed = carry
                number = stack.order.own(weights.chunk)[row]
                x, residuals = in_order(at(stash, saved.slot, row - first, instead=fetched))
                derivative, own = stack.kind.of(keep).derivative, (w, x, number, tokens[stack.name])
                total = totals[stack.name]
                dw, through, new_taps, *_, new = derivative.pullback(keep.policy, residuals, *own)((dx, of_report))
                total = stack.accumulate(total, dw, row, number, into)
                if taps is not None:
                    with jax.named_scope("kept_for_weights"):
                        taps = {**taps, stack.name: put(taps[stack.name], new_taps, into.taps_slot, row)}
                if observed is not None and derivative.zeros_observed is not None:
                    observed = observed.with_layer(number, new, into.valid & (number != PADDING))
                dx = stack.unless_padding(number, vary(through), dx)
                return dx, totals | {stack.name: total}, taps, observed

            return Step(step, lambda row: fetch(stash, saved.slot, row - first))

        carry = vary(dy), into.chunk.stack, side.taps, side.observed
        dx, totals, taps, observed = self._walk(weights, step_of, carry, reverse=True)
        totals = self.by_stack(lambda stack, own: stack.store.finish(own), totals)
        return dx, totals, side._replace(taps=taps, observed=observed)

    def weight_gradients(self, weights: Arrays, tokens: Tokens, into: Accumulator, side: Side) -> Arrays:
        """Add the gradients of a chunk's matrices, from `into.taps_slot` of what a split backward left."""
        saved = side.taps
        assert saved is not None, "a backward was split"

        def step_of(stack: LayerStack, keep: Keep, place: int) -> Step:
            like = jax.eval_shape(stack.load_any, weights[stack.name])
            zeros: Any = jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)
            linear = stack.kind.of(keep).linear
            assert linear is not None, "a split backward needs the layer's groups of matmuls"

            def step(_: Arrays, nothing: None, row: jax.Array, totals: Arrays) -> Arrays:
                taps, number = at(saved[stack.name], into.taps_slot, row), stack.order.own(into.chunk.chunk)[row]

                def groups(matrices: Arrays) -> Arrays:
                    w = merge(zeros, matrices)
                    return {name: linear(w, name, x, number, tokens[stack.name]) for name, (x, _) in taps.items()}

                with jax.named_scope("weight_gradients"):
                    # Linear in the matrices, so at zero the gradient is what it is anywhere; no weight is gathered.
                    pullback = jax.vjp(groups, stack.kind.derivative.halves(zeros)[1])[1]
                    (dw,) = pullback({name: dy for name, (_, dy) in taps.items()})
                total = stack.accumulate(totals[stack.name], dw, row, number, into)
                return totals | {stack.name: total}

            return Step(step, loads=False)

        chunk = into.chunk._replace(stack=weights)
        return self._walk(chunk, step_of, into.chunk.stack, by=lambda keep: keep.variant)

    def _walk[Carry](
        self,
        weights: Chunk,
        step_of: Callable[[LayerStack, Keep, int], Step],
        carry: Carry,
        *,
        reverse: bool = False,
        by: Callable[[Keep], Hashable] | None = None,
    ) -> Carry:
        """Run each layer of a chunk from the first to the last, or all from the last to the first.

        `step_of(stack, keep, its number)` is what such layers do; what they do depends on `by` of a keep alone.
        """
        sites = {}

        def site(kind: str, row: int) -> Site:
            stack = self.stack(kind)
            place, padded = stack.kind.keep_of(row), bool(stack.order.sometimes_padding[row])
            keep = stack.kind.keeps[place]
            key = kind, place if by is None else by(keep), padded
            if key not in sites:
                step, tie = step_of(stack, keep, place), tie_to(stack.kind.blocks, self.before, backward=reverse)
                sites[key] = stack.site(key, weights, stack.kind.firsts[place], padded, step, tie)
            return sites[key]

        slots = [(site(*slot), slot.row) for slot in self.order.slots]
        return walk(slots[::-1] if reverse else slots, carry, self.unroll)
