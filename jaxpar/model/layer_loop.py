"""One loop runs the stacked layers of a pipeline chunk: forward, backward, and the weights' gradients apart.

What autodiff of a plain scan would get wrong, and this does not:

- **No gathered weight is a residual.** Under ZeRO-3 a layer's weights are gathered at its entry, forward and again
  backward; between the two only the shards exist. (Autodiff would keep every gathered weight alive.)
- **The next layer's weights are gathered while this layer computes**, in both directions, so that the gather hides
  behind the matmuls. The loop carries one gathered layer ahead; one layer is peeled off to gather nothing in vain.
- **Gradients leave at once** for gradient placement (a reduce-scatter under ZeRO-2 and 3) inside the backward loop, and
  are added to what has accumulated there.
- **What is kept between forward and backward is an argument**: buffers with as many slots as the schedule needs,
  written and read in place. A slot holds, for each layer, its input and what the remat policy saves or offloads.
- **Layers of a chunk may keep different things**: neighbours that keep alike are one loop, and share a `Stash`.
- **What lies in host memory comes back one layer ahead**, beside the gathered weights, or as these.
- **Weights of the first layers may rest in host memory**, and their gradients go there as soon as they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from jaxpar.mesh.axes import vary
from jaxpar.mesh.layer_order import PADDING, Chunk, Index, LayerOrder, Parted
from jaxpar.mesh.materialize import gather, sink_gradient
from jaxpar.mesh.parameters import Tree
from jaxpar.mesh.placements import Placements, added_dim
from jaxpar.mesh.tracing import equations, traced
from jaxpar.model.context import TokenContext
from jaxpar.model.layer_derivative import Apply, LayerDerivative, Policy
from jaxpar.model.linear import untapped
from jaxpar.model.parts import merge
from jaxpar.model.stash import Stash, at, bring, in_order, on_host, put, stacked, taken, to_host

type Stashes = tuple[Stash, ...]
"""A `Stash` for each `Keep`."""


class Keep(NamedTuple):
    """What neighbouring layers of a chunk keep between forward and backward."""

    layers: int
    """How many."""
    policy: Policy | None = None
    """Remat policy inside a layer, as for `jax.checkpoint`; None keeps every intermediate of autodiff."""
    offload_inputs: bool = False
    """Whether their inputs lie in host memory."""
    away: bool = False
    """Whether their weights and gradients rest in host memory: stacks are `Parted` then."""


def split_keeps(keeps: Sequence[Keep], away: int) -> tuple[Keep, ...]:
    """`keeps`, the weights of the first `away` layers being in host memory."""
    found: list[Keep] = []
    for keep in keeps:
        first = min(away, keep.layers)
        away -= first
        found += [
            part
            for part in (keep._replace(layers=first, away=True), keep._replace(layers=keep.layers - first))
            if part.layers
        ]
    return tuple(found)


@dataclass(frozen=True, eq=False)
class LayerLoop:
    """How to run the layers of one pipeline rank."""

    apply: Apply
    placements: Placements
    keeps: tuple[Keep, ...]
    """What the layers of a chunk keep, in their order."""
    order: LayerOrder
    """Where the layers of the model lie in the stack."""
    linear: Callable[[Tree, str, jax.Array], Any] | None = None
    """A layer's groups of matmuls: (weights, name, input) -> outputs. Needed where `matrices` is."""
    matrices: Tree | None = field(default=None)
    """Splits the backward: which weights (true or false, like a layer's weights) belong to the groups of `linear`, and
    have their gradients from `weight_gradients`. None makes the backward whole."""

    def __post_init__(self) -> None:
        kept, layers = sum(keep.layers for keep in self.keeps), self.order.layers_per_chunk
        assert kept == layers, f"it is said of {kept} layers what they keep, and a chunk has {layers}"

    @property
    def firsts(self) -> list[int]:
        """The first layer in a chunk of each of `keeps`."""
        return list(accumulate((keep.layers for keep in self.keeps[:-1]), initial=0))

    @property
    def away(self) -> int:
        """Layers whose weights and gradients rest in host memory, the first of a chunk."""
        return sum(keep.layers for keep in self.keeps if keep.away)

    @property
    def prefetches(self) -> bool:
        """Whether storage differs from compute placement, so that there is something to gather ahead."""
        pairs = jax.tree.leaves(
            jax.tree.map(
                lambda compute, storage: added_dim(compute, storage) is not None,
                self.placements.compute.layout["layers"],
                self.placements.storage.layout["layers"],
            )
        )
        return any(pairs)

    def load(self, weights: Tree, row: Index, away: bool = False) -> Tree:
        """Weights of one row, from the stack in storage placement to compute placement; `away` from host memory."""
        return gather(self._stored(weights, row, away), self.placements, part="layers", unstacked=True)

    def _stored(self, weights: Tree, row: Index, away: bool) -> Tree:
        if not isinstance(weights, Parted):
            return at(weights, row)
        if not away:
            return at(weights.device, row - self.away)
        with jax.named_scope("stored_weights"):
            return jax.tree.map(lambda a: taken(a, row).astype(self.placements.storage.dtype), weights.host)

    def _load_any(self, weights: Tree) -> Tree:
        """`load` of a row for the sake of its shapes."""
        return self.load(weights, 0, away=self.away > 0)

    # ---- what is kept

    def stash(self, weights: Tree, x: jax.Array, tokens: TokenContext, slots: int) -> Stashes:
        """Zeros for `slots` passes through a chunk, given shapes of weights, a chunk's input and its tokens."""

        def empty(keep: Keep) -> Stash:
            def kept(weights: Tree, x: jax.Array, tokens: TokenContext) -> Stash:
                _, pullback = self._layer.vjp(keep.policy, self._load_any(weights), x, vary(jnp.int32(0)), tokens)
                return _kept(keep, x, pullback)

            return stacked((slots, keep.layers), kept, weights, x, tokens)

        with jax.named_scope("saved_activations"):
            return tuple(map(empty, self.keeps))

    def kept(self, weights: Tree, x: jax.Array, tokens: TokenContext, slots: int) -> Tree:
        """Zeros for what `slots` split backwards keep for their weights: inputs and output gradients of matmuls."""
        with jax.named_scope("kept_for_weights"):
            return stacked((slots, self.order.layers_per_chunk), self._taps_of_row, weights, x, tokens)

    def input_of(self, stashes: Stashes, slot: Index) -> Float[Array, "batch part embed"]:
        """The input of the chunk that lies in `slot`."""
        return taken(stashes[0].inputs, slot, 0)

    # ---- three walks over a chunk

    def run(self, weights: Chunk, x: jax.Array, tokens: TokenContext) -> Float[Array, "batch part embed"]:
        """Forward through a chunk, keeping nothing."""

        def step(w: Tree, _: None, layer: jax.Array, x: jax.Array) -> jax.Array:
            number = self.order.own(weights.chunk)[layer]
            return self._unless_padding(number, self.apply(w, x, number, tokens, untapped), x)

        parts = [(0, self.away, True), (self.away, self.order.layers_per_chunk - self.away, False)]
        return self._walk(weights, [_Stretch(first, n, step, away=away) for first, n, away in parts if n], x)

    def forward(
        self, weights: Chunk, x: jax.Array, tokens: TokenContext, stashes: Stashes, slot: Index
    ) -> tuple[Float[Array, "batch part embed"], Stashes]:
        """Forward through a chunk; what its backward needs goes to `slot` of the stashes."""

        def stretch(place: int, first: int, keep: Keep) -> _Stretch:
            def step(w: Tree, _: None, layer: jax.Array, carry: tuple[jax.Array, Stashes]) -> Any:
                x, stashes = carry
                number = self.order.own(weights.chunk)[layer]
                y, pullback = self._layer.vjp(keep.policy, w, x, number, tokens)
                with jax.named_scope("saved_activations"):
                    own = put(stashes[place], in_order(_kept(keep, x, pullback)), slot, layer - first)
                stashes = (*stashes[:place], own, *stashes[place + 1 :])
                return self._unless_padding(number, y, x), stashes

            return _Stretch(first, keep.layers, step, away=keep.away)

        return self._walk(weights, self._stretches(stretch), (x, stashes))

    def backward(
        self,
        weights: Chunk,
        dy: jax.Array,
        tokens: TokenContext,
        stashes: Stashes,
        slot: Index,
        gradients: Chunk,
        counts: Bool[Array, ""] | bool = True,
        kept: Tree | None = None,
        kept_slot: Index = 0,
        fresh: Bool[Array, ""] | bool = False,
    ) -> tuple[jax.Array, Tree, Tree | None]:
        """Backward through a chunk from `slot` of the stashes: (dx, gradients, kept).

        Gradients of the chunk's weights are added to `gradients` (gradient placement) where `counts`. If
        the backward is split these are the gradients of all but the matrices, for which `kept_slot` of `kept` fills.
        Where `fresh`, nothing has accumulated yet: gradients in host memory do not begin with zeros.
        """

        if self.away:
            # The last layer would otherwise stay from its forward, beside the loss.
            host, dy = lax.optimization_barrier((weights.stack.host, dy))
            weights = weights._replace(stack=weights.stack._replace(host=host))

        def stretch(place: int, first: int, keep: Keep) -> _Stretch:
            stash = stashes[place]

            def step(w: Tree, brought: Any, layer: jax.Array, carry: Any) -> Any:
                dx, total, kept = carry
                number = self.order.own(weights.chunk)[layer]
                x, residuals = in_order(at(stash, slot, layer - first, instead=brought))
                pullback = self._layer.pullback(keep.policy, residuals, w, x, number, tokens)
                dw, through, taps, *_ = pullback(dx)
                row = self._row(gradients, layer)
                if keep.away:
                    total = total._replace(host=self._send(total.host, dw, row, fresh))
                elif isinstance(total, Parted):
                    device = self._accumulate(total.device, dw, row - self.away, number, counts)
                    total = total._replace(device=device)
                else:
                    total = self._accumulate(total, dw, row, number, counts)
                if kept is not None:
                    with jax.named_scope("kept_for_weights"):
                        kept = put(kept, taps, kept_slot, layer)
                return self._unless_padding(number, vary(through), dx), total, kept

            return _Stretch(first, keep.layers, step, lambda layer: bring(stash, slot, layer - first), keep.away)

        return self._walk(weights, self._stretches(stretch), (vary(dy), gradients.stack, kept), reverse=True)

    def weight_gradients(
        self,
        weights: Tree,
        kept: Tree,
        slot: Index,
        gradients: Chunk,
        counts: Bool[Array, ""] | bool = True,
    ) -> Tree:
        """Add the gradients of a chunk's matrices to `gradients`, from what a split backward kept in `slot`."""
        like = jax.eval_shape(self._load_any, weights)
        zeros: Tree = jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)

        def step(total: Tree, layer: jax.Array) -> Tree:
            taps = at(kept, slot, layer)

            def groups(matrices: Tree) -> Tree:
                assert self.linear is not None, "a split backward needs the layer's groups of matmuls"
                w = merge(zeros, matrices)
                return {name: self.linear(w, name, x) for name, (x, _) in taps.items()}

            with jax.named_scope("weight_gradients"):
                # Linear in the matrices, so at zero the gradient is what it is anywhere; no weight is gathered for it.
                _, pullback = jax.vjp(groups, self._layer.halves(zeros)[1])
                (dw,) = pullback({name: dy for name, (_, dy) in taps.items()})
            number = self.order.own(gradients.chunk)[layer]
            return self._accumulate(total, dw, self._row(gradients, layer), number, counts)

        def left_out(total: Tree, layer: jax.Array) -> Tree:
            return self._left_out_of_padding(gradients.chunk, layer, lambda total: step(total, layer), total)

        total, shortest = gradients.stack, self.order.shortest
        for act, first, end in ((step, 0, shortest), (left_out, shortest, self.order.layers_per_chunk)):
            body = lambda total, layer, act=act: (act(total, layer), None)
            total = lax.scan(body, total, jnp.arange(first, end))[0] if first < end else total
        return total

    # ---- one layer

    @cached_property
    def _layer(self) -> LayerDerivative:
        return LayerDerivative(self.apply, self.matrices)

    def _taps_of_row(self, weights: Tree, x: jax.Array, tokens: TokenContext) -> Tree:
        return self._layer.zero_taps(self._load_any(weights), x, tokens)

    def _left_out_of_padding[Carry](
        self, chunk: Index, layer: jax.Array, act: Callable[[Carry], Carry], carry: Carry
    ) -> Carry:
        """`act(carry)`, and `carry` as it is in a row that only pads the stack: a branch, so that it takes no time.

        Ranks of a pipeline branch apart, and members of a group together, so groups may send each other what they
        like. What permutes is run in every row (see `permutes`), and so is what passes host memory on, which XLA would
        not move through a branch. On a GPU the host waits for what a branch depends on, so rows that hold a layer in
        every chunk do not come here.
        """
        program = traced(act, carry)
        if permutes(program.closed.jaxpr) or any(map(on_host, jax.tree.leaves(carry))):
            return program(carry)
        return lax.cond(self.order.own(chunk)[layer] != PADDING, program, lambda carry: carry, carry)

    def _unless_padding(self, number: jax.Array, y: jax.Array, x: jax.Array) -> jax.Array:
        """`y`, but `x` from a row that only pads the stack."""
        return jnp.where(number != PADDING, y, x) if self.order.padded else y

    def _accumulate(self, gradients: Tree, dw: Tree, row: Index, number: jax.Array, counts: Any) -> Tree:
        """Add a layer's gradients (compute placement) to its row of `gradients` (gradient placement)."""
        if self.order.padded:
            counts = counts & (number != PADDING)
        compute, gradient = self.placements.compute.layout["layers"], self.placements.gradient.layout["layers"]
        dtype = self.placements.gradient.dtype

        def add(total: Any, new: Any, compute: Any, gradient: Any) -> Any:
            if isinstance(new, dict):
                return total | {name: add(total[name], new[name], compute[name], gradient[name]) for name in new}
            assert isinstance(compute, PartitionSpec), "the layout of a weight"
            new = sink_gradient(new, compute, gradient, dtype=dtype, unstacked=True)
            with jax.named_scope("gradients"):
                new = new if counts is True else jnp.where(counts, new, 0)
                return put(total, at(total, row) + new, row)

        return add(gradients, dw, compute, gradient)

    def _send(self, gradients: Tree, dw: Tree, row: Index, fresh: Any) -> Tree:
        """Put a layer's gradients (compute placement), with those of other microbatches, into host memory."""
        compute, gradient = self.placements.compute.layout["layers"], self.placements.gradient.layout["layers"]
        dtype = self.placements.gradient.dtype

        def send(total: jax.Array, new: jax.Array, compute: PartitionSpec, gradient: PartitionSpec) -> jax.Array:
            new = sink_gradient(new, compute, gradient, dtype=dtype, unstacked=True)
            with jax.named_scope("gradients"):
                if fresh is not True:
                    new = jnp.where(fresh, new, taken(total, row) + new)
                return put(total, to_host(in_order(new)), row)

        return jax.tree.map(send, gradients, dw, compute, gradient)

    # ---- the walk

    def _row(self, chunk: Chunk, layer: Index) -> Index:
        return chunk.place * self.order.layers_per_chunk + layer

    def _stretches(self, make: Callable[[int, int, Keep], _Stretch]) -> list[_Stretch]:
        """`make(place, first layer, keep)` for each of `keeps`."""
        return [make(place, *own) for place, own in enumerate(zip(self.firsts, self.keeps, strict=True))]

    def _walk[Carry](
        self, weights: Chunk, stretches: Sequence[_Stretch], carry: Carry, *, reverse: bool = False
    ) -> Carry:
        """Run each layer of a chunk, stretch after stretch, or all from the last to the first."""
        parts = [part for stretch in stretches for part in stretch.split(self.order.shortest)]
        ordered = parts[::-1] if reverse else parts
        fetched = None
        for stretch, following in zip(ordered, [*ordered[1:], None], strict=True):
            after = None if following is None else partial(self._fetch, weights, following, following.order(reverse)[0])
            fetched, carry = self._run(weights, stretch, stretch.order(reverse), fetched, after, carry)
        return carry

    def _run[Carry](
        self,
        weights: Chunk,
        stretch: _Stretch,
        layers: jax.Array,
        fetched: Any,
        after: Callable[[], Any] | None,
        carry: Carry,
    ) -> tuple[Any, Carry]:
        """(what `after` fetches, carry) once the layers of a stretch have run, of which the first has `fetched`.

        While a layer runs, the next one's weights are gathered, and what its stretch brings is moved.
        """

        def run(fetched: tuple[Tree | None, Any], layer: jax.Array, carry: Carry) -> Carry:
            w, brought = fetched

            def act(carry: Carry) -> Carry:
                own = self.load(weights.stack, self._row(weights, layer), stretch.away) if w is None else w
                return stretch.step(own, brought, layer, carry)

            return self._left_out_of_padding(weights.chunk, layer, act, carry) if stretch.padded else act(carry)

        fetch = partial(self._fetch, weights, stretch)
        if not _has_arrays(partial(fetch, layers[0])) and not _has_arrays(after):
            body = lambda carry, layer: (run(fetch(layer), layer, carry), None)
            return None, lax.scan(body, carry, layers)[0]

        def ahead(state: tuple[Any, Carry], pair: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, Carry], None]:
            fetched, carry = state
            layer, following = pair
            coming = fetch(following)
            return (coming, run(fetched, layer, carry)), None

        fetched = fetch(layers[0]) if fetched is None else fetched
        (fetched, carry), _ = lax.scan(ahead, (fetched, carry), (layers[:-1], layers[1:]))
        coming = None if after is None else after()
        return coming, run(fetched, layers[-1], carry)

    def _fetch(self, weights: Chunk, stretch: _Stretch, layer: jax.Array) -> tuple[Tree | None, Any]:
        """What a layer wants ahead: gathered weights, where storage differs from compute; what `bring` moves."""
        ahead = self.prefetches or stretch.away
        w = self.load(weights.stack, self._row(weights, layer), stretch.away) if ahead else None
        return w, stretch.bring(layer)


class _Stretch(NamedTuple):
    """Neighbouring layers of a chunk that one loop runs."""

    first: int
    layers: int
    step: Callable[[Tree, Any, jax.Array, Any], Any]
    """`(weights, what was brought, layer in the chunk, carry) -> carry`."""
    bring: Callable[[jax.Array], Any] = lambda layer: None
    """What lies in host memory for a layer, moved to the device."""
    away: bool = False
    """Whether the layers' weights rest in host memory."""
    padded: bool = False
    """Whether their rows only pad the stack in some chunks."""

    def split(self, shortest: int) -> list[_Stretch]:
        """The layers that every chunk has, `shortest` being those of the shortest one, and the others."""
        held = max(0, min(self.layers, shortest - self.first))
        parts = (
            self._replace(layers=held),
            self._replace(first=self.first + held, layers=self.layers - held, padded=True),
        )
        return [part for part in parts if part.layers]

    def order(self, reverse: bool) -> jax.Array:
        """Numbers in the chunk, in the order in which they run."""
        return jnp.arange(self.first, self.first + self.layers)[:: -1 if reverse else 1]


def permutes(program: Jaxpr) -> bool:
    """Whether a program has a collective permute, which XLA matches with an unrelated one where some ranks leave it
    out."""
    return any(equation.primitive.name == "ppermute" for equation in equations(program))


def _kept(keep: Keep, x: jax.Array, pullback: Any) -> Stash:
    """What the backward of a layer needs of its forward, each array in the memory that it is kept in."""
    return Stash(to_host(x) if keep.offload_inputs else x, pullback.opaque_residuals)


def _has_arrays(function: Callable[[], Any] | None) -> bool:
    """Whether there is a function and its result has arrays."""
    return function is not None and bool(jax.tree.leaves(jax.eval_shape(function)))
