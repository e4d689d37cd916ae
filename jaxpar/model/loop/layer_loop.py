"""One loop runs the stacked layers of a pipeline chunk: forward, backward, and the weights' gradients apart.

What autodiff of a plain scan would get wrong, and this does not:

- **No gathered weight is a residual.** Under ZeRO-3 a layer's weights are gathered at its entry, forward and again
  backward; between the two only the shards exist. (Autodiff would keep every gathered weight alive.)
- **The next layer's weights are gathered while this layer computes**, in both directions and across kinds of layers, so
  that the gather hides behind the matmuls (`jaxpar.model.loop.walk`).
- **Gradients go to gradient placement at once** (a reduce-scatter under ZeRO-2 and 3) inside the backward loop, and
  are added to what has accumulated there.
- **What is kept between forward and backward is an argument**: buffers with as many slots as the schedule needs,
  written and read in place. A slot holds, for each layer, its input and what the remat policy saves or offloads.
- **Layers of a chunk may be of several kinds and keep different things**: equal neighbours are one loop, units of a
  pattern another one around it, and layers of a kind that keep the same share a `Stash`.
- **What is in host memory is fetched one layer ahead**, together with the gathered weights.
- **Weights of the first layers may be in host memory**; their gradients are written there as soon as they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.layers.context import TokenContext
from jaxpar.layers.report import Report
from jaxpar.memory.streaming import on_host, to_host
from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import PADDING, Chunk, Index, LayerOrder, Parted, Ungathered, own_layers, with_own_layers
from jaxpar.mesh.parameters import Arrays, merge
from jaxpar.mesh.placements import Placements
from jaxpar.model.loop.layer_kind import Keep, LayerKind
from jaxpar.model.loop.layer_stack import LayerStack, Step, tie_to
from jaxpar.model.loop.stash import Stash, Stashes, at, entry_on_device, fetch, in_order, put, stacked
from jaxpar.model.loop.walk import Site, walk
from jaxpar.runtime.observed import Observed
from jaxpar.runtime.passes import Accumulator, Cotangents, Saved, Valid
from pallas_kernels.vjp_parts import residuals_of

type Tokens = Mapping[str, TokenContext]
"""By kind, what its layers need to know about the tokens of a microbatch."""

type Stream = Float[Array, "batch part embed"]
"""The residual stream: a chunk's input or output."""


class Side(NamedTuple):
    """What passes through chunks leave besides activations and gradients."""

    metrics: Report
    """The sums of what layers report."""
    taps: Arrays | None
    """What split backwards leave for the gradients of matrices, [slot, row, ...]: inputs and output gradients of
    matmuls."""
    observed: Observed | None
    """Statistics of all layers, where they collect any."""


@dataclass(frozen=True, eq=False)
class LayerLoop:
    """How to run the layers of one pipeline rank."""

    kinds: Mapping[str, LayerKind]
    placements: Placements
    order: LayerOrder
    """The order of the model's layers in the stacks, and the slots of a chunk."""
    unroll: int = 1
    """Layers in a turn of the loop, where the next ones are fetched meanwhile."""
    before: str = ""
    """The part of a layer (attention, mlp) before whose products the next attention's weights must have arrived; none
    where it is empty."""

    def __post_init__(self) -> None:
        for kind, stack in self.order.stacks.items():
            kept, rows = self.kinds[kind].rows, stack.rows_per_chunk
            assert kept == rows, f"what they keep is given for {kept} layers, and a chunk has {rows}"

    def stack(self, kind: str) -> LayerStack:
        """The operations of a loop on the stack of a kind."""
        return LayerStack(kind, self.kinds[kind], self.order.stacks[kind], self.placements)

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
        written = lax.axis_size("pipe") == 1 and not self.order.padded

        def empty(stack: LayerStack, keep: Keep) -> Stash:
            def saved(weights: Arrays, x: Stream, tokens: TokenContext) -> Stash:
                derivative = stack.kind.of(keep).derivative
                arguments = stack.load_any(weights), x, vary(jnp.int32(0)), tokens
                _, pullback = derivative.vjp(keep.policy, *arguments)
                return Stash(to_host(x) if keep.offload_inputs else x, residuals_of(pullback))

            own = own_layers(weights, stack.name), x, tokens[stack.name]
            return stacked((slots, keep.layers), saved, *own, written=written)

        with jax.named_scope("saved_activations"):
            return {
                kind: tuple(empty(self.stack(kind), keep) for keep in own.keeps) for kind, own in self.kinds.items()
            }

    def side(self, weights: Arrays, x: Stream, tokens: Tokens, slots: int) -> Side:
        """Zeros, for shapes as in `stash`; `slots` are those of split backwards."""
        taps = None
        if slots:
            with jax.named_scope("kept_for_weights"):
                taps = {
                    kind: stacked(
                        (slots, stack.order.rows_per_chunk), stack.taps, own_layers(weights, kind), x, tokens[kind]
                    )
                    for kind, stack in ((kind, self.stack(kind)) for kind in self.kinds)
                }
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
            return entry_on_device(saved.stashes[kind][keep].inputs, saved.slot, row - self.kinds[kind].firsts[keep])

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

        return self._walk(weights, step_of, x, by=lambda keep: (keep.on_host, keep.variant))

    def forward(
        self, weights: Chunk, x: Stream, tokens: Tokens, saved: Saved, side: Side, valid: Valid = True
    ) -> tuple[Stream, Stashes, Side, Any]:
        """Forward through a chunk: (x, stashes, side, the stack of weights in storage placement).

        What its backward needs is saved; what its layers report is added to `side` where `valid`. The stack is the one
        of `weights`; if that is `Ungathered`, whose chunk has all of it, the rows that were gathered.
        """
        layers = self._room(weights.stack) if isinstance(weights.stack, Ungathered) else None

        def step_of(stack: LayerStack, keep: Keep, place: int) -> Step:
            first = stack.kind.firsts[place]

            def step(w: Arrays, stored: Arrays | None, row: jax.Array, carry: Any) -> Any:
                x, stashes, reported, layers = carry
                if stored is not None:
                    layers = with_own_layers(layers, stack.name, put(own_layers(layers, stack.name), stored, row))
                number = stack.order.own(weights.chunk)[row]
                all_own, at_row = stashes[stack.name], (saved.slot, row - first)
                inputs, x = _input_saved(keep, all_own[place].inputs, x, *at_row)
                derivative = stack.kind.of(keep).derivative
                (y, report), pullback = derivative.vjp(keep.policy, w, x, number, tokens[stack.name])
                with jax.named_scope("saved_activations"):
                    own = Stash(inputs, put(all_own[place].residuals, in_order(residuals_of(pullback)), *at_row))
                stashes = {**stashes, stack.name: (*all_own[:place], own, *all_own[place + 1 :])}
                new = {name: reported[name] + stack.unless_padding(number, own, 0) for name, own in report.items()}
                return stack.unless_padding(number, y, x), stashes, {**reported, **new}, layers

            return Step(step)

        carry = x, saved.stashes, self._no_metrics(), layers
        x, stashes, new, layers = self._walk(weights, step_of, carry)
        x, stashes = _written(x, stashes)
        metrics = {name: total + jnp.where(valid, new[name], 0) for name, total in side.metrics.items()}
        return x, stashes, side._replace(metrics=metrics), weights.stack if layers is None else layers

    def _room(self, weights: Ungathered) -> Any:
        """Buffers for all rows of `weights` in storage placement; each is written before it is read."""
        room: Any = {}
        with jax.named_scope("stored_weights"):
            for kind in self.kinds:
                stack = self.stack(kind)
                row = lambda own, stack=stack: stack.stored(own, 0)
                own = stacked((stack.order.rows_per_chunk,), row, own_layers(weights, kind), written=True)
                room = with_own_layers(room, kind, own)
        return room

    def backward(
        self, weights: Chunk, cotangents: Cotangents, tokens: Tokens, saved: Saved, into: Accumulator, side: Side
    ) -> tuple[Stream, Arrays, Side]:
        """Backward through a chunk, from what its forward saved: (dx, gradients, side).

        Gradients of the chunk's weights are added up as `into` states; if the backward is split these are the gradients
        of all but the matrices, for which `into.taps_slot` of the taps fills.
        """
        stack, dy = weights.stack, cotangents.y
        if isinstance(stack, Parted):
            # Rows in host memory are read again: the last layer's would stay on the device from its forward on.
            host, dy = lax.optimization_barrier((stack.host, dy))
            weights = weights._replace(stack=stack._replace(host=host))

        def step_of(stack: LayerStack, keep: Keep, place: int) -> Step:
            stash, first = saved.stashes[stack.name][place], stack.kind.firsts[place]
            of_report = {name: vary(cotangents.reports.get(name, jnp.float32(0))) for name in stack.kind.reports}

            def step(w: Arrays, fetched: Any, row: jax.Array, carry: Any) -> Any:
                dx, totals, taps, observed = carry
                number = stack.order.own(weights.chunk)[row]
                x, residuals = in_order(at(stash, saved.slot, row - first, instead=fetched))
                derivative, own = stack.kind.of(keep).derivative, (w, x, number, tokens[stack.name])
                total = own_layers(totals, stack.name)
                dw, through, new_taps, *_, new = derivative.pullback(keep.policy, residuals, *own)((dx, of_report))
                if into.completes:
                    total, dw = stack.with_next_summed(total, dw, row)
                total = stack.accumulate(total, dw, row, number, into, first)
                if taps is not None:
                    with jax.named_scope("kept_for_weights"):
                        taps = {**taps, stack.name: put(taps[stack.name], new_taps, into.taps_slot, row)}
                if observed is not None and derivative.zeros_observed is not None:
                    observed = observed.with_layer(number, new, into.valid & (number != PADDING))
                dx = stack.unless_padding(number, vary(through), dx)
                return dx, with_own_layers(totals, stack.name, total), taps, observed

            return Step(step, lambda row: fetch(stash, saved.slot, row - first))

        carry = vary(dy), into.chunk.stack, side.taps, side.observed
        dx, totals, taps, observed = self._walk(weights, step_of, carry, reverse=True)
        for kind in self.kinds if into.completes else ():
            totals = with_own_layers(totals, kind, self.stack(kind).with_first_summed(own_layers(totals, kind)))
        return dx, totals, side._replace(taps=taps, observed=observed)

    def weight_gradients(self, weights: Arrays, tokens: Tokens, into: Accumulator, side: Side) -> Arrays:
        """Add the gradients of a chunk's matrices, from `into.taps_slot` of what a split backward left."""
        saved = side.taps
        assert saved is not None, "a backward was split"

        def site(key: Hashable, stack: LayerStack, place: int, padded: bool) -> Site:
            like = jax.eval_shape(stack.load_any, own_layers(weights, stack.name))
            zeros: Any = jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)
            linear = stack.kind.of(stack.kind.keeps[place]).linear
            assert linear is not None, "a split backward needs the layer's groups of matmuls"

            def step(_: None, row: jax.Array, totals: Any) -> Any:
                taps, number = at(saved[stack.name], into.taps_slot, row), stack.order.own(into.chunk.chunk)[row]

                def groups(matrices: Arrays) -> Arrays:
                    w = merge(zeros, matrices)
                    return {name: linear(w, name, x, number, tokens[stack.name]) for name, (x, _) in taps.items()}

                with jax.named_scope("weight_gradients"):
                    # Linear in the matrices, so at zero the gradient is what it is anywhere; no weight is gathered.
                    pullback = jax.vjp(groups, stack.kind.derivative.halves(zeros)[1])[1]
                    (dw,) = pullback({name: dy for name, (_, dy) in taps.items()})
                total = stack.accumulate(own_layers(totals, stack.name), dw, row, number, into)
                return with_own_layers(totals, stack.name, total)

            def left_out(_: None, row: jax.Array, totals: Any) -> Any:
                act = lambda totals: step(None, row, totals)
                return stack.left_out_of_padding(into.chunk.chunk, row, act, totals)

            return Site(key, left_out if padded else step, lambda row: None)

        return walk(self._slots(site, lambda keep: keep.variant), into.chunk.stack)

    # ---- the walk

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
        tie = tie_to(self.before, backward=reverse)

        def site(key: Hashable, stack: LayerStack, place: int, padded: bool) -> Site:
            step = step_of(stack, stack.kind.keeps[place], place)
            return stack.site(key, weights, stack.kind.firsts[place], padded, step, tie)

        slots = self._slots(site, by)
        return walk(slots[::-1] if reverse else slots, carry, self.unroll)

    def _slots(
        self, make: Callable[[Hashable, LayerStack, int, bool], Site], by: Callable[[Keep], Hashable] | None
    ) -> list[tuple[Site, int]]:
        """The slots of a chunk, (site, row) each; `make` takes a key, a stack, the number of a keep, and whether rows
        only pad the stack in some chunks."""
        sites: dict[Hashable, Site] = {}

        def site(kind: str, row: int) -> Site:
            stack = self.stack(kind)
            place, padded = stack.kind.keep_of(row), bool(stack.order.sometimes_padding[row])
            key = kind, place if by is None else by(stack.kind.keeps[place]), padded
            return sites[key] if key in sites else sites.setdefault(key, make(key, stack, place, padded))

        return [(site(*slot), slot.row) for slot in self.order.slots]


def _input_saved(keep: Keep, inputs: jax.Array, x: Stream, *where: Index) -> tuple[jax.Array, Stream]:
    """`inputs` with a layer's input `x` at `where`, and `x`.

    On the device it is there before the layer reads `x`: products that add to `x` can then write over it. XLA would
    copy it for each of them, since it might be kept later.
    """
    with jax.named_scope("saved_activations"):
        if keep.offload_inputs:
            return put(inputs, to_host(in_order(x)), *where), x
        return lax.optimization_barrier((put(inputs, in_order(x), *where), x))


def _written(x: Stream, stashes: Stashes) -> tuple[jax.Array, Stashes]:
    """`x` and `stashes`: nothing reads `x` before what is kept on the device is in its place.

    The last layer, which is not in the loop, would write to the stashes after the loss, when XLA has nothing else to
    do: what it keeps would be there twice until then.
    """
    leaves, tree = jax.tree.flatten(stashes)
    x, device = lax.optimization_barrier((x, [leaf for leaf in leaves if not on_host(leaf)]))
    left = iter(device)
    return x, tree.unflatten([leaf if on_host(leaf) else next(left) for leaf in leaves])
