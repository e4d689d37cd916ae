"""One layer, its pullback, and the taps of a split backward: functions that JAX traces once for all loops.

JAX caches traces by the function's identity. A layer is one function object per remat policy, so that all
loops of a step, forward and backward, share one trace of it and one derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxpar.mesh.axes import vary
from jaxpar.mesh.parameters import Arrays, Nested, merge, select
from jaxpar.runtime.passes import Context, Output
from jaxpar.runtime.taps import Taps, recording, tapping
from pallas_kernels.vjp_parts import set_arguments, set_residuals, vjp_without_arguments

type Policy = Callable[..., PyTree]

type Apply = Callable[..., Output]
"""One layer: (weights in compute placement, x, layer's number in the model, tokens, tap, zeros, recorded) -> (x,
report). The tap is None where the backward is not split. The cotangents of the zeros are the statistics that the layer
collects; None if it collects none. `recorded` is as in `jaxpar.layers.block.Context`."""

type Linear = Callable[[Arrays, str, jax.Array, jax.Array, Context], Arrays]
"""(weights, name of a group, its input, layer's number, tokens) -> outputs."""


@dataclass(frozen=True, eq=False)
class LayerProgram:
    """`apply` and its pullbacks, differentiated with respect to all weights but the `matrices` and the `frozen`."""

    apply: Apply
    linear: Linear | None = None
    """A layer's groups of matmuls. Needed if `matrices` is set."""
    matrices: Nested[bool] | None = None
    """Splits the backward: which weights (true or false, like a layer's weights) belong to the groups of `linear`, and
    have their gradients from `matrix_gradients`. None makes the backward whole."""
    frozen: Nested[bool] | None = None
    """Weights that have no gradients; None gives all of them one."""
    observes: int = 0
    """Numbers that the layer observes in its backward (`jaxpar.runtime.observed`)."""
    reports: tuple[str, ...] = ()
    """Names of what the layer reports."""

    def __post_init__(self) -> None:
        assert self.matrices is None or self.frozen is None, "a backward is split where all weights have gradients"

    def run(
        self,
        w: Arrays,
        x: jax.Array,
        layer_index: jax.Array,
        tokens: Context,
        recorded: dict[str, jax.Array] | None = None,
    ) -> Output:
        """The layer's output and report alone."""
        return self.apply(w, x, layer_index, tokens, None, self._zeros(), recorded)

    def vjp(
        self, policy: Policy | None, w: Arrays, x: jax.Array, layer_index: jax.Array, tokens: Context
    ) -> tuple[Output, PyTree]:
        """The layer's output and report, and their pullback, which holds none of the arguments.

        `policy` is that of `jax.checkpoint`; None keeps every intermediate of autodiff.
        """
        differentiated = (True, True, True, False, False, False, True)
        arguments = self._arguments(w, x, layer_index, tokens)
        return vjp_without_arguments(self._function(policy), *arguments, differentiated=differentiated)

    def pullback(
        self, policy: Policy | None, residuals: PyTree, w: Arrays, x: jax.Array, layer_index: jax.Array, tokens: Context
    ) -> PyTree:
        """The pullback of `vjp`, from the `residuals` that its own kept: (gradients of the weights, dx, taps, ...,
        observed statistics)."""
        _, pullback = jax.eval_shape(self._vjp(policy), w, x, layer_index, tokens)
        set_arguments(pullback, *self._arguments(w, x, layer_index, tokens))
        set_residuals(pullback, residuals)
        return pullback

    def halves(self, w: Arrays) -> tuple[Arrays, Arrays]:
        """(weights that the backward differentiates, the others)."""
        fixed = self.matrices if self.frozen is None else self.frozen
        return (w, {}) if fixed is None else (select(w, fixed, False), select(w, fixed, True))

    def zero_taps(self, w: Arrays, x: jax.Array, tokens: Context) -> Arrays:
        """Zeros like the input and the outputs of each group of matmuls; nothing unless the backward is split."""
        return {} if self.matrices is None else _zeros(jax.eval_shape(self._groups, w, x, tokens))

    def matrix_gradients(self, like: Arrays, taps: Taps, layer_index: jax.Array, tokens: Context) -> Arrays:
        """The gradients of the matrices, from what a split backward left in the `taps`: inputs and output gradients of
        their groups. `like` are the shapes of the layer's weights."""
        linear, zeros = self.linear, _zeros(like)
        assert linear is not None, "a split backward needs the layer's groups of matmuls"

        def groups(matrices: Arrays) -> Arrays:
            return {name: linear(merge(zeros, matrices), name, x, layer_index, tokens) for name, (x, _) in taps.items()}

        # Linear in the matrices, so at zero the gradient is what it is anywhere; no weight is gathered.
        _, pullback = jax.vjp(groups, self.halves(zeros)[1])
        return pullback({name: dy for name, (_, dy) in taps.items()})[0]

    def _zeros(self) -> PyTree:
        """Zeros, whose cotangents are the layer's statistics; None if it collects none."""
        return vary(jnp.zeros(self.observes)) if self.observes else None

    def _arguments(self, w: Arrays, x: jax.Array, layer_index: jax.Array, tokens: Context) -> tuple[PyTree, ...]:
        """The arguments of `_function`."""
        diff, fixed = self.halves(w)
        return diff, x, self.zero_taps(w, x, tokens), fixed, layer_index, tokens, self._zeros()

    @cached_property
    def _groups(self) -> Callable[..., Taps]:
        """The input and the outputs of each group of matmuls."""

        def groups(w: Arrays, x: jax.Array, tokens: Context) -> Taps:
            recorded: dict[str, tuple[jax.Array, PyTree]] = {}
            self.apply(w, x, vary(jnp.int32(0)), tokens, recording(recorded), self._zeros(), None)
            return recorded

        return groups

    @cached_property
    def _vjp(self) -> Callable[[Policy | None], Callable[..., tuple[Output, PyTree]]]:
        return cache(lambda policy: partial(self.vjp, policy))

    @cached_property
    def _function(self) -> Callable[[Policy | None], Callable[..., Output]]:
        def function(
            diff: Arrays,
            x: jax.Array,
            taps: Arrays,
            fixed: Arrays,
            layer_index: jax.Array,
            tokens: Context,
            zeros: PyTree,
        ) -> Output:
            return self.apply(merge(diff, fixed), x, layer_index, tokens, tapping(taps) if taps else None, zeros, None)

        # Forward and recomputation are in different loops, so the compiler cannot merge them.
        checkpointed = lambda policy: jax.checkpoint(function, policy=policy, prevent_cse=False)
        return cache(lambda policy: function if policy is None else checkpointed(policy))


def _zeros(like: Arrays) -> Arrays:
    return jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)
