"""Collective matmuls: the gather or the scatter of the sequence over tensor ranks, and the matmuls next to it.

`plain` runs the collective whole, before or after the matmuls. `ring` cuts both: a part of the sequence passes from
rank to rank, and while it is sent, the matmuls of the part that has arrived run. Neither the joined sequence nor the
partial sums of all ranks then exist whole. The derivatives are rings, too:

- `matmul_scatter`, backward: the gradient of the output passes round, beside both gradients of the part at hand.
- `gather_matmul`, backward: the input passes round a second time, beside the gradient of the input (dgrad); partial
  sums of that gradient pass round in the same direction, beside the gradient of the weights (wgrad). These are the
  independent pairs of Kwai's system (USENIX ATC'24); the ring of a dependent pair is that of arXiv:2302.05442 and of
  asynchronous tensor parallelism in PyTorch.

`jaxpar.mesh.rings` has what passes round; `jaxpar.precision.dense` has the same rings for quantized matmuls.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree, Shaped

from jaxpar.config.plan import TensorOverlap
from jaxpar.mesh.collectives import gather_sequence, require_varying, scatter_sequence
from jaxpar.mesh.rings import (
    ArrayTuple,
    ChunkSlice,
    Cotangent,
    Perturbed,
    Sums,
    bidirectional_rings,
    instantiated,
    perturbed_arguments,
    ring_all_gather,
    ring_gather_and_reduce_scatter,
    ring_reduce_scatter,
)
from pallas_kernels.varying import vary_alike
from pallas_kernels.vjp_parts import custom_vjp

PLAIN_OVERLAP = TensorOverlap()
"""Collectives before and after whole matmuls."""
OUTPUTS, GRADIENTS = lax.Precision.DEFAULT, lax.Precision.HIGHEST
"""The precisions of products of 8-bit values. On Hopper GPUs XLA has cuBLASLt keep outputs in the tensor cores' sums,
of about 14 bits (arXiv:2412.19437, section 3.3.2), and add gradients up in float32. CPUs add both up in float32."""


def gather_matmul(
    x: Shaped[Array, "batch part *inputs"],
    weights: Sequence[Shaped[Array, "..."]],
    overlap: TensorOverlap = PLAIN_OVERLAP,
) -> tuple[Shaped[Array, "batch seq ..."], ...]:
    """`gather_sequence(x)` times each of `weights` [*inputs, *outputs].

    Sends `x * (n - 1)` bytes with n = tensor. Backward with respect to `x` and `weights`, twice as many: the input
    again, if it was not kept, and sums of its gradient.
    """
    require_varying(x, ("tensor",), "gather_matmul")
    if overlap.algorithm.name == "plain":
        joined = gather_sequence(x)
        return tuple(product(joined, w) for w in weights)
    xs, matrices = vary_alike(((x,), tuple(weights)))
    return _ring(True, overlap.chunks, xs, matrices)


def matmul_scatter(
    xs: Sequence[Shaped[Array, "batch seq ..."]],
    weights: Sequence[Shaped[Array, "..."]],
    overlap: TensorOverlap = PLAIN_OVERLAP,
) -> Shaped[Array, "batch part *outputs"]:
    """`scatter_sequence` of the sum of the products of `xs` [batch, seq, *inputs] and `weights` [*inputs, *outputs].

    Sends `x * (n - 1) / n` bytes with n = tensor and x the bytes of a product. The backward sends as many.
    """
    require_varying(xs[0], ("tensor",), "matmul_scatter")
    if overlap.algorithm.name == "plain":
        return scatter_sequence(_sum([product(x, w) for x, w in zip(xs, weights, strict=True)]))
    inputs, matrices = vary_alike((tuple(xs), tuple(weights)))
    summed: ArrayTuple = _ring(False, overlap.chunks, inputs, matrices)
    return summed[0]


def product(x: Shaped[Array, "batch seq *inputs"], w: Shaped[Array, "..."]) -> Shaped[Array, "batch seq *outputs"]:
    """`x` times a matrix `w` [*inputs, *outputs], in the dtype of `x`; the gradient of `w` has the dtype of `w`.

    A product of two matrices, since XLA for CPUs would transpose the operand of a gradient of `w` that is summed over
    two dims, number by number.
    """
    if w.dtype == x.dtype:
        return (_rows(x) @ _matrix(w, x.ndim - 2)).reshape(*x.shape[:2], *w.shape[x.ndim - 2 :])
    return _product(*vary_alike((x, w)))


@jax.custom_vjp
def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    """`product` with a matrix of values of the dtype of `x` in a wider one.

    Autodiff would round the product that is the matrix's gradient, and convert the rounded one.
    """
    return jnp.tensordot(x, w.astype(x.dtype), x.ndim - 2)


def _product_backward(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = saved
    over = lambda left, right: ((tuple(left), tuple(right)), ((), ()))
    dx = lax.dot_general(dy, w.astype(x.dtype), over(range(2, dy.ndim), range(x.ndim - 2, w.ndim)))
    return dx, lax.dot_general(x, dy, over((0, 1), (0, 1)), preferred_element_type=w.dtype)


_product.defvjp(lambda x, w: (_product(x, w), (x, w)), _product_backward)


# ---- rings of operands, which may be codes of 8 bits: results have another dtype, and their scales come after


def gathered_products(
    chunks: int, x: jax.Array, weights: Sequence[jax.Array], dtype: DTypeLike
) -> tuple[jax.Array, ...]:
    """The sequence that `x` is joined to times each of `weights`, as `dtype`."""

    inputs = x.ndim - 2

    def compute(chunk: jax.Array, where: ChunkSlice, state: None) -> tuple[None, list[jax.Array]]:
        one = lambda w: _times(_rows(chunk), _matrix(w, inputs), dtype).reshape(*chunk.shape[:2], *w.shape[inputs:])
        return state, list(map(one, weights))

    _, ys = ring_all_gather(bidirectional_rings(x.shape[1], chunks), x, compute, None)
    return tuple(ys)


def gathered_gradients(
    chunks: int,
    perturbed: Perturbed,
    x: jax.Array,
    weights: Sequence[jax.Array],
    dys: list[jax.Array],
    dtype: DTypeLike,
    scales: Sequence[jax.Array] | None = None,
) -> tuple[jax.Array | None, list[jax.Array]]:
    """The gradients of `gathered_products`: that of `x` as `dtype`, [batch, part, inputs], and in float32 those of the
    weights that have one.

    `scales` are those of the products of each of `dys` and its weight, in the gradient of `x`.
    """
    rings = bidirectional_rings(x.shape[1], chunks)
    dgrad = lambda dys, arrived: _input_gradient(dys, weights, x.ndim - 2, dtype, arrived, scales)
    wgrad = lambda x, dys, sums: _weight_gradients([(x, dy) for dy in perturbed.select(dys)], sums)
    if not any(perturbed.weights):
        return ring_reduce_scatter(rings, dys, dgrad), []
    if not perturbed.inputs:
        compute = lambda chunk, where, sums: (wgrad(chunk, where.select(dys), sums), [])
        start: Sums = None
        sums, _ = ring_all_gather(rings, x, compute, start)
        return None, sums or []
    dx, sums = ring_gather_and_reduce_scatter(rings, x, dys, dgrad, wgrad)
    return dx, sums or []


def scattered_products(
    chunks: int, xs: Sequence[jax.Array], weights: Sequence[jax.Array], dtype: DTypeLike
) -> jax.Array:
    """A rank's part of the sum of the products of `xs` and `weights` over all ranks, as `dtype`."""

    def products(xs: list[jax.Array], addend: jax.Array | None) -> jax.Array:
        each = [_times(_rows(x), _matrix(w, x.ndim - 2), dtype) for x, w in zip(xs, weights, strict=True)]
        return _sum(each if addend is None else [addend, *each])

    return ring_reduce_scatter(
        bidirectional_rings(xs[0].shape[1] // lax.axis_size("tensor"), chunks), list(xs), products
    )


def scattered_gradients(
    chunks: int,
    perturbed: Perturbed,
    xs: Sequence[jax.Array],
    weights: Sequence[jax.Array],
    dy: jax.Array,
    dtype: DTypeLike,
) -> tuple[list[jax.Array] | None, list[jax.Array]]:
    """The gradients of `scattered_products`: those of `xs` as `dtype`, and in float32 those of the weights that have
    one."""

    def compute(chunk: jax.Array, where: ChunkSlice, sums: Sums) -> tuple[Sums, list[jax.Array]]:
        new = [
            _input_gradient([chunk], [w], x.ndim - 2, dtype).reshape(*chunk.shape[:2], *x.shape[2:])
            for x, w in zip(xs, weights, strict=True)
        ]
        if any(perturbed.weights):
            sums = _weight_gradients([(x, chunk) for x in where.select(perturbed.select(xs))], sums)
        return sums, new if perturbed.inputs else []

    sums, dxs = ring_all_gather(bidirectional_rings(dy.shape[1], chunks), dy, compute, None)
    return dxs if perturbed.inputs else None, sums or []


# ---- products of a chunk


def _sum(each: Sequence[jax.Array]) -> jax.Array:
    return sum(each[1:], each[0])


def _rows(x: jax.Array) -> jax.Array:
    """Reshapes to the operand of a matmul, which adds to an array only if that has two dims too."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _matrix(w: jax.Array, inputs: int) -> jax.Array:
    return w.reshape(prod(w.shape[:inputs]), -1)


def _times(a: jax.Array, b: jax.Array, dtype: DTypeLike, quantized_precision: lax.Precision = OUTPUTS) -> jax.Array:
    """The product of two matrices."""
    if a.dtype.itemsize > 1:
        return a @ b
    return lax.dot(a, b, precision=quantized_precision, preferred_element_type=dtype)


def _input_gradient(
    dys: Sequence[jax.Array],
    weights: Sequence[jax.Array],
    inputs: int,
    dtype: DTypeLike,
    addend: jax.Array | None = None,
    scales: Sequence[jax.Array] | None = None,
) -> jax.Array:
    """[batch * tokens, inputs], of the common input of `weights`, whose first `inputs` dims it has, plus `addend`."""
    pairs = zip(dys, weights, strict=True)
    each = [_times(_rows(dy), _matrix(w, inputs).T, dtype, GRADIENTS) for dy, w in pairs]
    if scales is not None:
        each = [dx * scale.astype(dtype) for dx, scale in zip(each, scales, strict=True)]
    return _sum(each if addend is None else [addend, *each])


def _weight_gradients(pairs: Sequence[tuple[jax.Array, jax.Array]], sums: Sums) -> list[jax.Array]:
    """Float32 gradients of weights, from (input, gradient of the output) of each, added to `sums` unless None."""
    gradients: list[jax.Array] = []
    for index, (x, dy) in enumerate(pairs):
        if gradients:  # XLA would join the matmuls of one input, and then cannot add to the sums in them
            x, gradients[-1] = lax.optimization_barrier((x, gradients[-1]))
        precision = GRADIENTS if x.dtype.itemsize == 1 else None
        new = lax.dot_general(x, dy, (((0, 1), (0, 1)), ((), ())), precision, preferred_element_type=jnp.float32)
        gradients.append(new if sums is None else sums[index] + new)
    return gradients


# ---- derivatives


@custom_vjp(0, 1)
def _ring(gathers: bool, chunks: int, xs: ArrayTuple, weights: ArrayTuple) -> ArrayTuple:
    """The products of the sequence that one input is joined to, or the part of the sum of the products of several."""
    narrow, dtype = _narrow(weights, xs), xs[0].dtype
    if gathers:
        return gathered_products(chunks, xs[0], narrow, dtype)
    return (scattered_products(chunks, xs, narrow, dtype),)


def _narrow(weights: Sequence[jax.Array], xs: Sequence[jax.Array]) -> list[jax.Array]:
    """Matrices as they are multiplied: see `product`."""
    return [w.astype(xs[0].dtype) for w in weights]


type _Saved = tuple[Perturbed, ArrayTuple, ArrayTuple]


def _ring_forward(gathers: bool, chunks: int, xs: ArrayTuple, weights: ArrayTuple) -> tuple[ArrayTuple, _Saved]:
    perturbed, xs, weights = perturbed_arguments(xs, weights)
    return _ring(gathers, chunks, xs, weights), (perturbed, xs, weights)


def _ring_backward(
    gathers: bool, chunks: int, saved: _Saved, dys: tuple[Cotangent, ...]
) -> tuple[PyTree[jax.Array], ...]:
    perturbed, xs, weights = saved
    narrow, dtype, each = _narrow(weights, xs), xs[0].dtype, [instantiated(dy, xs[0]) for dy in dys]
    if gathers:
        dx, sums = gathered_gradients(chunks, perturbed, xs[0], narrow, each, dtype)
        dxs = None if dx is None else [dx]
    else:
        dxs, sums = scattered_gradients(chunks, perturbed, xs, narrow, each[0], dtype)
    return None if dxs is None else tuple(dxs), perturbed.gradients(sums, weights)


_ring.defvjp(_ring_forward, _ring_backward, symbolic_zeros=True)
