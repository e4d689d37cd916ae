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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxpar.layers.context import TokenContext
from jaxpar.layers.report import AUXILIARY_LOSS, Report
from jaxpar.memory.streaming import on_host, to_host
from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import PADDING, Chunk, Index, LayerOrder, Ungathered, own_layers, with_own_layers
from jaxpar.mesh.parameters import Arrays, merge
from jaxpar.mesh.placements import Placements
from jaxpar.model.loop.layer_kind import Keep, LayerKind, no_report
from jaxpar.model.loop.layer_stack import LayerStack
from jaxpar.model.loop.parted import read_after
from jaxpar.model.loop.stash import Stash, at, entry_on_device, fetch, in_order, put, stacked
from jaxpar.model.loop.walk import Site, walk
from jaxpar.runtime.observed import Observed
from pallas_kernels.vjp_parts import residuals_of

type Stashes = Mapping[str, tuple[Stash, ...]]
"""By kind, a `Stash` for each `Keep`."""

type Tokens = Mapping[str, TokenContext]
"""By kind, what its layers need to know about the tokens of a microbatch."""


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

    def zeros_observed(self) -> Observed | None:
        """Zeros for the statistics of all layers, by the layer's number; None if layers collect none."""
        programs = [program for kind in self.kinds.values() for program in (kind, *kind.quantised.values())]
        makers = [program.zeros_observed for program in programs if program.zeros_observed is not None]
        layers = sum(len(stack.layers) for stack in self.order.stacks.values())
        return makers[0](layers) if makers else None

    # ---- what is kept

    def stash(self, weights: Arrays, x: jax.Array, tokens: Tokens, slots: int) -> Stashes:
        """Buffers for `slots` passes through a chunk, given shapes of weights, a chunk's input and its tokens.

        Without pipeline ranks each pass forward fills a slot. With them, a tick in which a rank has nothing to do reads
        what may not be written, so that buffers are zeros.
        """
        written = lax.axis_size("pipe") == 1 and not self.order.padded

        def empty(stack: LayerStack, keep: Keep) -> Stash:
            def kept(weights: Arrays, x: jax.Array, tokens: TokenContext) -> Stash:
                number = vary(jnp.int32(0))
                derivative = stack.kind.of(keep).derivative
                _, pullback = derivative.vjp(keep.policy, stack.load_any(weights), x, number, tokens)
                return _kept(keep, x, pullback)

            own = own_layers(weights, stack.name), x, tokens[stack.name]
            return stacked((slots, keep.layers), kept, *own, written=written)

        with jax.named_scope("saved_activations"):
            return {
                kind: tuple(empty(self.stack(kind), keep) for keep in own.keeps) for kind, own in self.kinds.items()
            }

    def kept(self, weights: Arrays, x: jax.Array, tokens: Tokens, slots: int) -> Arrays:
        """Zeros for what `slots` split backwards keep for W: inputs and output gradients of matmuls."""

        def zeros(stack: LayerStack) -> Arrays:
            own = own_layers(weights, stack.name), x, tokens[stack.name]
            return stacked((slots, stack.order.rows_per_chunk), stack.taps, *own)

        with jax.named_scope("kept_for_weights"):
            return {kind: zeros(self.stack(kind)) for kind in self.kinds}

    def input_of(self, stashes: Stashes, slot: Index, chunk: Index) -> Float[Array, "batch part embed"]:
        """The input of a chunk of this rank in `slot`: that of its first layer."""

        def first(place: int) -> jax.Array:
            kind, row = self.order.slots[place]
            keep = self.kinds[kind].keep_of(row)
            return entry_on_device(stashes[kind][keep].inputs, slot, row - self.kinds[kind].firsts[keep])

        places = self.order.first_slots
        some, *others = sorted(set(places.ravel().tolist()))
        x = first(some)
        own = jnp.asarray(places, jnp.int32)[lax.axis_index("pipe"), chunk] if others else None
        for place in others:
            x = jnp.where(own == place, first(place), x)
        return x

    # ---- three walks over a chunk

    def run(self, weights: Chunk, x: jax.Array, tokens: Tokens) -> Float[Array, "batch part embed"]:
        """Forward through a chunk, keeping nothing."""

        def site(stack: LayerStack, place: int, keep: Keep) -> _Step:
            def step(w: Arrays, _: None, row: jax.Array, x: jax.Array) -> jax.Array:
                number = stack.order.own(weights.chunk)[row]
                y = stack.kind.of(keep).derivative.run(w, x, number, tokens[stack.name])[0]
                return stack.unless_padding(number, y, x)

            return step, lambda row: None

        return self._walk(weights, site, x, keeps_alike=True)

    def forward(
        self, weights: Chunk, x: jax.Array, tokens: Tokens, stashes: Stashes, slot: Index
    ) -> tuple[Float[Array, "batch part embed"], Stashes, Report]:
        """Forward through a chunk; what its backward needs goes to `slot` of the stashes. (x, stashes, report)"""
        return self.forward_and_layers(weights, x, tokens, stashes, slot)[:3]

    def forward_and_layers(
        self, weights: Chunk, x: jax.Array, tokens: Tokens, stashes: Stashes, slot: Index
    ) -> tuple[Float[Array, "batch part embed"], Stashes, Report, Any]:
        """`forward`, and the stack of weights in storage placement: of one that is `Ungathered`, whose chunk has all of
        it, the rows that were gathered."""
        layers = self._room(weights.stack) if isinstance(weights.stack, Ungathered) else None

        def site(stack: LayerStack, place: int, keep: Keep) -> _Step:
            kind, first = stack.kind, stack.kind.firsts[place]

            def step(w: Arrays, stored: Arrays | None, row: jax.Array, carry: Any) -> Any:
                x, stashes, reported, layers = carry
                if stored is not None:
                    layers = with_own_layers(layers, stack.name, put(own_layers(layers, stack.name), stored, row))
                number = stack.order.own(weights.chunk)[row]
                derivative, all_own, at_row = kind.of(keep).derivative, stashes[stack.name], (slot, row - first)
                inputs, x = _input_kept(keep, all_own[place].inputs, x, *at_row)
                (y, report), pullback = derivative.vjp(keep.policy, w, x, number, tokens[stack.name])
                with jax.named_scope("saved_activations"):
                    own = Stash(inputs, put(all_own[place].residuals, in_order(residuals_of(pullback)), *at_row))
                stashes = {**stashes, stack.name: (*all_own[:place], own, *all_own[place + 1 :])}
                new = {name: reported[name] + stack.unless_padding(number, own, 0) for name, own in report.items()}
                return stack.unless_padding(number, y, x), stashes, {**reported, **new}, layers

            return step, lambda row: None

        x, stashes, report, layers = self._walk(weights, site, (x, stashes, no_report(self.reports), layers))
        return *_written(x, stashes), report, weights.stack if layers is None else layers

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
        self,
        weights: Chunk,
        dy: jax.Array,
        tokens: Tokens,
        stashes: Stashes,
        slot: Index,
        gradients: Chunk,
        counts: Bool[Array, ""] | bool = True,
        kept: Arrays | None = None,
        kept_slot: Index = 0,
        fresh: Bool[Array, ""] | bool = False,
        seed: Float[Array, ""] | None = None,
        observed: Observed | None = None,
        completes: bool = False,
    ) -> tuple[jax.Array, Arrays, Arrays | None, Observed | None]:
        """Backward through a chunk from `slot` of the stashes: (dx, gradients, kept, observed).

        Gradients of the chunk's weights are added to `gradients` (gradient placement) where `counts`. If
        the backward is split these are the gradients of all but the matrices, for which `kept_slot` of `kept` fills.
        If `fresh`, nothing has accumulated yet: gradients in host memory are not initialised to zeros. `seed` is the
        cotangent of the layers' auxiliary losses. `observed` has the layers' statistics so far. If the backward
        `completes` the gradients, those that travel early are summed over their ranks, a layer's while the next one
        goes backward.
        """
        again, dy = read_after(weights.stack, dy)
        weights = weights._replace(stack=again)

        def site(stack: LayerStack, place: int, keep: Keep) -> _Step:
            stash, first = stashes[stack.name][place], stack.kind.firsts[place]
            of_report = {name: _cotangent(name, seed) for name in stack.kind.reports}

            def step(w: Arrays, fetched: Any, row: jax.Array, carry: Any) -> Any:
                dx, totals, kept, observed = carry
                number = stack.order.own(weights.chunk)[row]
                x, residuals = in_order(at(stash, slot, row - first, instead=fetched))
                own = w, x, number, tokens[stack.name]
                derivative = stack.kind.of(keep).derivative
                total = own_layers(totals, stack.name)
                dw, through, taps, *_, new = derivative.pullback(keep.policy, residuals, *own)((dx, of_report))
                if completes:
                    total, dw = stack.with_next_summed(total, dw, row)
                total = stack.accumulate(total, dw, stack.row(gradients, row), number, counts, keep.on_host, fresh)
                if kept is not None:
                    with jax.named_scope("kept_for_weights"):
                        kept = {**kept, stack.name: put(kept[stack.name], taps, kept_slot, row)}
                if observed is not None and derivative.zeros_observed is not None:
                    observed = observed.with_layer(number, new, counts & (number != PADDING))
                dx = stack.unless_padding(number, vary(through), dx)
                return dx, with_own_layers(totals, stack.name, total), kept, observed

            return step, lambda row: fetch(stash, slot, row - first)

        carry = vary(dy), gradients.stack, kept, observed
        dx, totals, kept, observed = self._walk(weights, site, carry, reverse=True)
        for kind in self.kinds if completes else ():
            totals = with_own_layers(totals, kind, self.stack(kind).with_first_summed(own_layers(totals, kind)))
        return dx, totals, kept, observed

    def weight_gradients(
        self,
        weights: Arrays,
        kept: Arrays,
        slot: Index,
        gradients: Chunk,
        tokens: Tokens,
        counts: Bool[Array, ""] | bool = True,
    ) -> Arrays:
        """Add the gradients of a chunk's matrices to `gradients`, from what a split backward kept in `slot`."""

        def site(stack: LayerStack, padded: bool, keep: Keep) -> Site:
            like = jax.eval_shape(stack.load_any, own_layers(weights, stack.name))
            zeros: Any = jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)
            linear = stack.kind.of(keep).linear
            assert linear is not None, "a split backward needs the layer's groups of matmuls"

            def step(_: None, row: jax.Array, totals: Any) -> Any:
                taps, number = at(kept[stack.name], slot, row), stack.order.own(gradients.chunk)[row]

                def groups(matrices: Arrays) -> Arrays:
                    w = merge(zeros, matrices)
                    return {name: linear(w, name, x, number, tokens[stack.name]) for name, (x, _) in taps.items()}

                with jax.named_scope("weight_gradients"):
                    # Linear in the matrices, so at zero the gradient is what it is anywhere; no weight is gathered.
                    pullback = jax.vjp(groups, stack.kind.derivative.halves(zeros)[1])[1]
                    (dw,) = pullback({name: dy for name, (_, dy) in taps.items()})
                total = own_layers(totals, stack.name)
                total = stack.accumulate(total, dw, stack.row(gradients, row), number, counts)
                return with_own_layers(totals, stack.name, total)

            def left_out(_: None, row: jax.Array, totals: Any) -> Any:
                return stack.left_out_of_padding(gradients.chunk, row, lambda totals: step(None, row, totals), totals)

            return Site((stack.name, padded, keep.exact), left_out if padded else step, lambda row: None)

        sites: dict[Any, Site] = {}

        def site_of(kind: str, row: int) -> Site:
            stack = self.stack(kind)
            padded, keep = bool(stack.order.sometimes_padding[row]), stack.kind.keeps[stack.kind.keep_of(row)]
            key = kind, padded, keep.exact
            return sites[key] if key in sites else sites.setdefault(key, site(stack, padded, keep))

        return walk([(site_of(*slot), slot.row) for slot in self.order.slots], gradients.stack)

    # ---- the walk

    def _walk[Carry](
        self,
        weights: Chunk,
        make: Callable[[LayerStack, int, Keep], _Step],
        carry: Carry,
        *,
        reverse: bool = False,
        keeps_alike: bool = False,
    ) -> Carry:
        """Run each layer of a chunk from the first to the last, or all from the last to the first.

        `make(stack, number of a keep, keep)` gives the step of such layers, and what it has fetched from host memory.
        Where `keeps_alike` it does not depend on what layers keep.
        """
        sites: dict[Any, Site] = {}

        def site(kind: str, row: int) -> Site:
            stack = self.stack(kind)
            place, padded = stack.kind.keep_of(row), bool(stack.order.sometimes_padding[row])
            keep = stack.kind.keeps[place]
            key = kind, (keep.on_host, keep.exact) if keeps_alike else place, padded
            if key not in sites:
                step, fetches = make(stack, place, keep)
                sites[key] = stack.site(key, weights, keep, padded, step, fetches, self.before, backward=reverse)
            return sites[key]

        slots = [(site(*slot), slot.row) for slot in self.order.slots]
        return walk(slots[::-1] if reverse else slots, carry, self.unroll)


type _Step = tuple[Callable[[Arrays, Any, jax.Array, Any], Any], Callable[[jax.Array], Any]]
"""`(weights, what was fetched, row, carry) -> carry`, and what is in host memory for a row, moved to the device."""


def _kept(keep: Keep, x: jax.Array, pullback: Any) -> Stash:
    """What the backward of a layer needs of its forward, each array in the memory in which it is kept."""
    return Stash(to_host(x) if keep.offload_inputs else x, residuals_of(pullback))


def _input_kept(
    keep: Keep, inputs: jax.Array, x: Float[Array, "batch part embed"], *where: Index
) -> tuple[jax.Array, Float[Array, "batch part embed"]]:
    """`inputs` with a layer's input `x` at `where`, and `x`.

    On the device it is there before the layer reads `x`: products that add to `x` can then write over it. XLA would
    copy it for each of them, since it might be kept later.
    """
    with jax.named_scope("saved_activations"):
        if keep.offload_inputs:
            return put(inputs, to_host(in_order(x)), *where), x
        return lax.optimization_barrier((put(inputs, in_order(x), *where), x))


def _written(x: jax.Array, stashes: Stashes) -> tuple[jax.Array, Stashes]:
    """`x` and `stashes`: nothing reads `x` before what is kept on the device is in its place.

    The last layer, which is not in the loop, would write to the stashes after the loss, when XLA has nothing else to
    do: what it keeps would be there twice until then.
    """
    leaves, tree = jax.tree.flatten(stashes)
    x, device = lax.optimization_barrier((x, [leaf for leaf in leaves if not on_host(leaf)]))
    left = iter(device)
    return x, tree.unflatten([leaf if on_host(leaf) else next(left) for leaf in leaves])


def _cotangent(name: str, seed: jax.Array | None) -> jax.Array:
    """The cotangent of the report `name`."""
    return vary(jnp.float32(0) if name != AUXILIARY_LOSS or seed is None else seed)
