"""Quantised products of routed experts with a scale for a tensor, or for a row.

**Scales of earlier steps** are one for each tensor of a layer: the rows of all experts, each stack of matrices,
the gradients of each output.

**Current scaling** is by the tensor's own magnitude. A stack of matrices has one scale. Rows have one each: they come
from everywhere, in slices and in rounds of the exchange, and no rank has seen all of them when the first is multiplied.
A row's scale is that of its numbers, and so the same on every layout, in every slice and round. In outputs and in
gradients of rows it is a factor of the row. Tensor ranks have a part of the hidden activation and of its gradient, and
find the maximum of each row together: 4 bytes a row, which no other rank waits for.

Gradients of matrices multiply what the codes stand for, in the compute dtype. Under current scaling a row's is no
factor of a sum over rows. One scale of all rows is one; multiplying its codes by the kernel,
with tiles of rows as in `jaxpar.precision.grouped`, has not been built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from jaxpar.mesh.axes import varying_axes
from jaxpar.mesh.collectives import reduce_max
from jaxpar.precision.amax import Amax, amax_of_group
from jaxpar.precision.matmul import SCALES, GroupScaling, largest_over
from jaxpar.precision.recipe import E4M3, Recipe
from jaxpar.precision.scale import quantise, scale_of
from jaxpar.precision.tiles import Codes
from pallas_kernels.grouped_matmul.api import Static
from pallas_kernels.grouped_tiled_matmul import REGISTRY, grouped_tiled_matmul
from pallas_kernels.tiled_matmul.reference import numbers
from pallas_kernels.varying import vary_alike

EXPERT_AXES = ("expert", "tensor")
"""Axes that split the matrices of a layer's experts, gathered from those of ZeRO."""
TILE = 128
"""Numbers for which the kernel takes a scale."""


def scales_of_experts(
    weights: Sequence[Float[Array, "experts inputs outputs"]], scaling: GroupScaling
) -> Float[Array, " scales"] | Float[Array, "matrices experts inputs outputs"] | None:
    """The scales that all rounds of a layer share: of all tensors of a group where earlier steps give them, else of its
    matrices; of tiles those of the squares of matrices that are codes, and None where they are not.

    Sends a maximum of one number for each matrix over the ranks of the experts, if the matrices are no codes yet.
    """
    if isinstance(scaling.of_codes, tuple):
        return jnp.stack(scaling.of_codes)
    if scaling.recipe.tiles is not None:
        return None
    if scaling.scales is not None:
        return scaling.scales
    if scaling.of_codes is not None:
        return scaling.of_codes
    return checkpoint_name(scale_of(largest_over(weights, EXPERT_AXES), E4M3), SCALES)


def products(
    x: Float[Array, "rows inputs"],
    weights: Sequence[Float[Array, "experts inputs outputs"]],
    sizes: Int[Array, " experts"],
    scaling: GroupScaling,
    grouped: Static,
    *,
    inward: bool,
) -> tuple[Float[Array, "rows outputs"], ...]:
    """Like `jaxpar.precision.grouped.grouped_products`.

    Sends a maximum of each row over the tensor ranks that have parts of it, unless scales come from earlier steps.
    """
    assert scaling.scales is not None, "scales of a layer's matrices are found before its rounds"
    given = scaling.scales.shape[0] > len(weights)
    how = _How(scaling.recipe, grouped, inward, scaling.coded, given)
    x, scales = vary_alike((x, scaling.scales))
    if given:
        of_x, of_others = scales[0], scales[1:]
    else:
        (of_x,) = how.of_rows([lax.stop_gradient(x)], E4M3, split=not inward)
        of_x, of_others = checkpoint_name(of_x, SCALES), scales
    arguments = x, tuple(weights), sizes, (of_x, of_others), scaling.zeros, scaling.exact
    return _products(how, *vary_alike(arguments))


def codes_times(
    recipe: Recipe, grouped: Static, rows: Codes, matrices: Codes, sizes: jax.Array, dtype: DTypeLike
) -> Float[Array, "rows outputs"]:
    """Codes [rows, inputs] times those of the matrices of their experts, [experts, outputs, inputs]."""
    return grouped_tiled_matmul(*rows, *matrices, sizes, dtype, **multiplied_by(recipe, grouped))


def multiplied_by(recipe: Recipe, grouped: Static) -> dict[str, Any]:
    """What multiplies codes of routed experts, as arguments of `pallas_kernels.grouped_tiled_matmul`."""
    named = recipe.backend in REGISTRY.names  # cuDNN has no grouped product
    return {
        "implementation": recipe.backend if named else "auto", "numbers_by": grouped.name, "expected": grouped.expected,
    }  # fmt: skip


def exact_products(
    grouped: Static, x: jax.Array, weights: Sequence[jax.Array], sizes: jax.Array
) -> tuple[Float[Array, "rows outputs"], ...]:
    """Rows times the matrices of their experts, of which nothing is quantised."""
    return tuple(grouped.times_weights(x, w, sizes, transposed=False) for w in weights)


def exact_gradients(
    grouped: Static, x: jax.Array, weights: Sequence[jax.Array], sizes: jax.Array, dys: Sequence[jax.Array]
) -> tuple[Float[Array, "rows inputs"], tuple[jax.Array, ...]]:
    """Of `exact_products`: of the rows, and of each stack of matrices."""
    terms = [grouped.times_weights(dy, w, sizes, transposed=True) for dy, w in zip(dys, weights, strict=True)]
    return sum(terms[1:], terms[0]), tuple(grouped.of_weights(x, dy, sizes) for dy in dys)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _How:
    recipe: Recipe
    grouped: Static
    inward: bool
    """Whether tensor ranks split the outputs; else the inputs."""
    coded: bool
    """Whether the matrices are values of codes already."""
    given: bool
    """Whether the scales of rows and gradients come from earlier steps."""

    def of_rows(self, each: Sequence[jax.Array], form: str, *, split: bool) -> list[Float[Array, " rows"]]:
        """The scale of each row of some arrays, in one message if tensor ranks have parts of rows (`split`)."""
        own = jnp.stack([jnp.max(jnp.abs(x), axis=1).astype(jnp.float32) for x in each])
        if split and "tensor" in varying_axes(own) and lax.axis_size("tensor") > 1:
            own = vary_alike((reduce_max(own, ("tensor",)), own))[0]
        return list(scale_of(own, form))

    def of_gradients(self, dys: tuple[jax.Array, ...], scales: jax.Array) -> list[jax.Array]:
        """The scale, or those of the rows, of the gradient of each output."""
        if self.given:
            return list(scales[len(dys) :])
        return self.of_rows(dys, self.recipe.gradient, split=self.inward)

    def matrices(self, weights: tuple[jax.Array, ...], scales: jax.Array) -> list[jax.Array]:
        """Codes [experts, inputs, outputs]."""
        each = zip(weights, scales, strict=False)
        return [w.astype(E4M3) if self.coded else quantise(w, scale, E4M3) for w, scale in each]

    def numbers(self, codes: jax.Array, scale: jax.Array, dtype: DTypeLike) -> jax.Array:
        """What codes of rows stand for, of one scale or of each row's."""
        return numbers(codes, jnp.broadcast_to(scale.reshape(-1, 1), (len(codes), 1))).astype(dtype)

    def times(
        self, x: jax.Array, scale: jax.Array, w: jax.Array, of_w: jax.Array, sizes: jax.Array, dtype: DTypeLike
    ) -> jax.Array:
        """Codes [rows, inputs] times codes [experts, outputs, inputs]: a scale of all is that of every tile."""
        (rows, inputs), (experts, outputs, _) = x.shape, w.shape
        whole = inputs % TILE == 0 and outputs % TILE == 0
        across, down = (inputs // TILE, outputs // TILE) if whole else (1, 1)
        of_x = jnp.broadcast_to(scale.reshape(-1, 1), (rows, across))
        matrices = Codes(w, jnp.broadcast_to(of_w, (experts, down, across)))
        return codes_times(self.recipe, self.grouped, Codes(x, of_x), matrices, sizes, dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(
    how: _How, x: jax.Array, weights: tuple[jax.Array, ...], sizes: jax.Array, both: tuple[jax.Array, jax.Array],
    zeros: Amax | None, exact: jax.Array | None,
) -> tuple[jax.Array, ...]:  # fmt: skip
    of_x, scales = both

    def quantised() -> tuple[jax.Array, ...]:
        rows = quantise(x, of_x.reshape(-1, 1), E4M3)
        each = zip(how.matrices(weights, scales), scales, strict=False)
        return tuple(how.times(rows, of_x, w.mT, own, sizes, x.dtype) for w, own in each)

    exactly = lambda: exact_products(how.grouped, x, weights, sizes)
    return quantised() if exact is None else lax.cond(exact, exactly, quantised)


def _forward[*Saved](how: _How, *arguments: *Saved) -> tuple[tuple[jax.Array, ...], tuple[*Saved]]:
    return _products(how, *arguments), arguments


def _backward(how: _How, saved: tuple[PyTree[jax.Array], ...], dys: tuple[jax.Array, ...]) -> tuple[PyTree, ...]:
    x, weights, sizes, (of_x, scales), zeros, exact = saved
    of_dys = how.of_gradients(dys, scales)  # not in the branch, because it may send

    def quantised() -> tuple[jax.Array, tuple[jax.Array, ...], Amax | None]:
        rows = how.numbers(quantise(x, of_x.reshape(-1, 1), E4M3), of_x, x.dtype)
        terms, dws = [], []
        for dy, of_dy, w, of_w in zip(dys, of_dys, how.matrices(weights, scales), scales, strict=False):
            codes = quantise(dy, of_dy.reshape(-1, 1), how.recipe.gradient)
            terms.append(how.times(codes, of_dy, w, of_w, sizes, x.dtype))
            dws.append(how.grouped.of_weights(rows, how.numbers(codes, of_dy, x.dtype), sizes))
        amax = amax_of_group(x, weights, dys, zeros, coded=how.coded, sizes=sizes)
        return sum(terms[1:], terms[0]), tuple(dws), amax

    def exactly() -> tuple[jax.Array, tuple[jax.Array, ...], Amax | None]:
        return *exact_gradients(how.grouped, x, weights, sizes, dys), jax.tree.map(jnp.zeros_like, zeros)

    dx, dws, amax = quantised() if exact is None else lax.cond(exact, exactly, quantised)
    return dx, dws, None, None, amax, None


_products.defvjp(_forward, _backward)
