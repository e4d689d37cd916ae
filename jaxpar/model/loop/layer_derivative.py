"""One layer, its pullback, and the taps of a split backward: functions that JAX traces once for all loops.

JAX caches traces by the function's identity. A layer is one function object per remat policy, so that all
loops of a step, forward and backward, share one trace of it and one derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxpar.mesh.axes import vary
from jaxpar.mesh.parameters import Arrays, Nested, merge, select
from jaxpar.runtime.observed import ZerosObserved
from jaxpar.runtime.passes import Context, Output
from jaxpar.runtime.taps import recording, tapping
from pallas_kernels.vjp_parts import set_arguments, set_residuals, vjp_without_arguments

type Policy = Callable[..., Any]

type Apply = Callable[..., Output]
"""One layer: (weights in compute placement, x, layer's number in the model, tokens, tap, zeros) -> (x, report). The tap
is None where the backward is not split. The cotangents of the zeros are the statistics that the layer collects; None if
it collects none."""


class LayerDerivative:
    """`apply` and its pullbacks, differentiated with respect to all weights but the `matrices` and the `frozen`."""

    def __init__(
        self,
        apply: Apply,
        matrices: Nested[bool] | None,
        frozen: Nested[bool] | None = None,
        zeros_observed: ZerosObserved | None = None,
    ):
        assert matrices is None or frozen is None, "a backward is split where all weights have gradients"
        self.apply, self.matrices, self.zeros_observed = apply, matrices, zeros_observed
        self._fixed = matrices if frozen is None else frozen
        self._function = cache(self._make_function)
        self._groups = self._find_groups
        self._vjp = cache(lambda policy: partial(self.vjp, policy))

    def run(self, w: Arrays, x: jax.Array, number: jax.Array, tokens: Context) -> Output:
        """The layer's output and report alone."""
        return self.apply(w, x, number, tokens, None, self._zeros())

    def vjp(
        self, policy: Policy | None, w: Arrays, x: jax.Array, number: jax.Array, tokens: Context
    ) -> tuple[Output, Any]:
        """The layer's output and report, and their pullback, which holds none of the arguments.

        `policy` is that of `jax.checkpoint`; None keeps every intermediate of autodiff.
        """
        differentiated = (True, True, True, False, False, False, True)
        arguments = self._arguments(w, x, number, tokens)
        return vjp_without_arguments(self._function(policy), *arguments, differentiated=differentiated)

    def pullback(
        self, policy: Policy | None, residuals: Any, w: Arrays, x: jax.Array, number: jax.Array, tokens: Context
    ) -> Any:
        """The pullback of `vjp`, from the `residuals` that its own kept: (gradients of the weights, dx, taps, ...,
        observed statistics)."""
        _, pullback = jax.eval_shape(self._vjp(policy), w, x, number, tokens)
        set_arguments(pullback, *self._arguments(w, x, number, tokens))
        set_residuals(pullback, residuals)
        return pullback

    def halves(self, w: Arrays) -> tuple[Arrays, Arrays]:
        """(weights that the backward differentiates, the others)."""
        if self._fixed is None:
            return w, {}
        return select(w, self._fixed, False), select(w, self._fixed, True)

    def zero_taps(self, w: Arrays, x: jax.Array, tokens: Context) -> Arrays:
        """Zeros like the input and the outputs of each group of matmuls; nothing unless the backward is split."""
        if self.matrices is None:
            return {}
        like = jax.eval_shape(self._groups, w, x, tokens)
        return jax.tree.map(lambda leaf: vary(jnp.zeros(leaf.shape, leaf.dtype)), like)

    def _zeros(self) -> Any:
        """Zeros, whose cotangents are the layer's statistics; None if it collects none."""
        return None if self.zeros_observed is None else vary(self.zeros_observed())

    def _arguments(self, w: Arrays, x: jax.Array, number: jax.Array, tokens: Context) -> tuple[Any, ...]:
        """The arguments of `_function`."""
        diff, fixed = self.halves(w)
        return diff, x, self.zero_taps(w, x, tokens), fixed, number, tokens, self._zeros()

    def _find_groups(self, w: Arrays, x: jax.Array, tokens: Context) -> dict[str, tuple[Any, Any]]:
        """The input and the outputs of each group of matmuls."""
        found: dict[str, tuple[Any, Any]] = {}
        self.apply(w, x, vary(jnp.int32(0)), tokens, recording(found), self._zeros())
        return found

    def _make_function(self, policy: Policy | None) -> Callable[..., Output]:
        def function(
            diff: Arrays, x: jax.Array, taps: Arrays, fixed: Arrays, number: jax.Array, tokens: Context, zeros: Any
        ) -> Output:
            return self.apply(merge(diff, fixed), x, number, tokens, tapping(taps) if taps else None, zeros)

        # Forward and recomputation are in different loops, so the compiler cannot merge them.
        return function if policy is None else jax.checkpoint(function, policy=policy, prevent_cse=False)
