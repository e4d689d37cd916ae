"""One function runs the stacked layers, with a derivative of its own.

What autodiff of a plain scan would get wrong, and this does not:

- **No gathered weight is a residual.** Under ZeRO-3 a layer's weights are gathered at its entry, forward and again
  backward; between the two only the shards exist. (Autodiff would keep every gathered weight alive.)
- **The next layer's weights are gathered while this layer computes**, in both directions, so that the gather hides
  behind the matmuls. The loop carries one gathered layer ahead; one layer is peeled off to gather nothing in vain.
- **Gradients leave at once** for gradient placement (a reduce-scatter under ZeRO-2 and 3) inside the backward loop.

Between forward and backward a layer keeps its input and what the remat policy saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxpar.mesh.axes import vary
from jaxpar.mesh.materialize import gather, sink_gradients, zero_sinks
from jaxpar.mesh.parameters import Tree
from jaxpar.mesh.placements import Placements, added_dim
from jaxpar.model.context import TokenContext

type Policy = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class LayerLoop:
    """How to run the layers of one pipeline rank."""

    apply: Callable[[Tree, jax.Array, jax.Array, TokenContext], jax.Array]
    """One layer: (weights in compute placement, x, layer index in the model, tokens) -> x."""
    placements: Placements
    policy: Policy | None
    """Remat policy inside a layer, as for `jax.checkpoint`; None keeps every activation."""

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

    def zero_gradients(self, weights: Tree) -> Tree:
        """Zeros for the gradients of a stack of layers, in gradient placement."""
        return zero_sinks(weights, self.placements, part="layers")

    def load(self, weights: Tree, layer: int | jax.Array) -> Tree:
        """Weights of one layer, from the stack in storage placement to compute placement."""
        return gather(_at(weights, layer), self.placements, part="layers", unstacked=True)

    def vjp(self, w: Tree, x: jax.Array, index: jax.Array, tokens: TokenContext) -> tuple[jax.Array, Any]:
        """One layer and its pullback, which holds none of the arguments."""
        apply = self.apply
        if self.policy is not None:
            # Forward and recomputation stand in different loops, so there is nothing to keep the compiler from merging.
            apply = jax.checkpoint(apply, policy=self.policy, prevent_cse=False)
        return jax.vjp(apply, w, x, index, tokens, saveable_args=False, in_nzs=(True, True, False, False))


def run_layers(
    loop: LayerLoop, weights: Tree, sinks: Tree, x: Float[Array, "batch part embed"], tokens: TokenContext
) -> Float[Array, "batch part embed"]:
    """Run the layers of this pipeline rank on `x`, which must vary over every mesh axis.

    `weights` are stacked [layers, ...] in storage placement; their gradient goes to `sinks` (gradient placement).
    """
    return _run_layers(loop, weights, sinks, x, tokens)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run_layers(loop: LayerLoop, weights: Tree, sinks: Tree, x: jax.Array, tokens: TokenContext) -> jax.Array:
    del sinks

    def step(w: Tree, layer: jax.Array, x: jax.Array) -> jax.Array:
        return loop.apply(w, x, _global_index(weights, layer), tokens)

    return _walk(loop, weights, step, x, reverse=False)


def _forward(loop: LayerLoop, weights: Tree, sinks: Tree, x: jax.Array, tokens: TokenContext) -> tuple[jax.Array, Any]:
    del sinks
    _, like = _pullback_shapes(loop, weights, x, tokens)

    def stack(leaf: Any) -> jax.Array:
        with jax.named_scope("saved_activations"):
            return vary(jnp.zeros((_count(weights), *leaf.shape), leaf.dtype))

    def step(w: Tree, layer: jax.Array, carry: Any) -> Any:
        x, inputs, residuals = carry
        y, pullback = loop.vjp(w, x, _global_index(weights, layer), tokens)
        with jax.named_scope("saved_activations"):
            return y, _put(inputs, x, layer), _put(residuals, pullback.opaque_residuals, layer)

    start = x, stack(x), jax.tree.map(stack, like.opaque_residuals)
    y, inputs, residuals = _walk(loop, weights, step, start, reverse=False)
    return y, (weights, tokens, inputs, residuals)


def _backward(loop: LayerLoop, kept: Any, dy: jax.Array) -> tuple[None, Tree, jax.Array, None]:
    weights, tokens, inputs, residuals = kept

    def step(w: Tree, layer: jax.Array, carry: Any) -> Any:
        dx, gradients = carry
        x, index = _at(inputs, layer), _global_index(weights, layer)
        _, pullback = _pullback_shapes(loop, weights, x, tokens)
        pullback.args_res = jax.tree.leaves((w, x, index, tokens))
        pullback.opaque_residuals = _at(residuals, layer)
        dw, dx, *_ = pullback(dx)
        new = sink_gradients(dw, loop.placements, part="layers", unstacked=True)
        with jax.named_scope("gradients"):
            return vary(dx), _put(gradients, new, layer)

    dx, gradients = _walk(loop, weights, step, (vary(dy), loop.zero_gradients(weights)), reverse=True)
    return None, gradients, dx, None


_run_layers.defvjp(_forward, _backward)


def _walk[Carry](
    loop: LayerLoop, weights: Tree, step: Callable[[Tree, jax.Array, Carry], Carry], carry: Carry, *, reverse: bool
) -> Carry:
    """`step(w, layer, carry)` for each layer in turn, the next layer's weights being gathered meanwhile."""
    order = jnp.arange(_count(weights))[:: -1 if reverse else 1]
    if not loop.prefetches:
        return lax.scan(lambda c, layer: (step(loop.load(weights, layer), layer, c), None), carry, order)[0]

    def body(state: tuple[Tree, Carry], layers: tuple[jax.Array, jax.Array]) -> tuple[tuple[Tree, Carry], None]:
        w, carry = state
        layer, following = layers
        ahead = loop.load(weights, following)
        return (ahead, step(w, layer, carry)), None

    (w, carry), _ = lax.scan(body, (loop.load(weights, order[0]), carry), (order[:-1], order[1:]))
    return step(w, order[-1], carry)


def _pullback_shapes(loop: LayerLoop, weights: Tree, x: jax.Array, tokens: TokenContext) -> tuple[Any, Any]:
    """Shapes of one layer's output, and its pullback with shapes for residuals, for its structure."""
    w = jax.eval_shape(lambda weights: loop.load(weights, 0), weights)
    return jax.eval_shape(loop.vjp, w, x, jax.eval_shape(_global_index, weights, 0), tokens)


def _count(weights: Tree) -> int:
    return jax.tree.leaves(weights)[0].shape[0]


def _global_index(weights: Tree, layer: int | jax.Array) -> jax.Array:
    return lax.axis_index("pipe") * _count(weights) + layer


def _at(stack: Tree, layer: int | jax.Array) -> Tree:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, layer, keepdims=False), stack)


def _put(stack: Tree, new: Tree, layer: jax.Array) -> Tree:
    return jax.tree.map(lambda a, b: lax.dynamic_update_index_in_dim(a, vary(b), layer, 0), stack, new)
