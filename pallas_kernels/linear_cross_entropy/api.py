"""`fused_linear_cross_entropy`: the loss of a linear head, whose float32 logits never exist in memory.

Forward is one matmul. Backward recomputes the logits, a chunk of the vocabulary at a time, and of each chunk's
gradients the two matmuls: four in all. Where the forward keeps what is needed of the logits (`keep`), two bytes each,
there are three.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.device import INTERPRETER, target
from pallas_kernels.linear_cross_entropy.head import CHUNK_BYTES, Head, Tile, merge_shards
from pallas_kernels.linear_cross_entropy.registry import REGISTRY, Request
from pallas_kernels.linear_cross_entropy.saved_logits import Token
from pallas_kernels.varying import vary_alike, vary_over, varying_axes

IGNORED = -100
"""The label of tokens that do not count, unless the caller names another."""


class TokenLoss(NamedTuple):
    """Loss of each token in nats, float32; equal on every rank of the axes that split the vocabulary."""

    loss: Float[Array, " tokens"]
    """Negative log-likelihood + z_loss * lse^2; 0 for a token that does not count."""
    lse: Float[Array, " tokens"]
    """Log-sum-exp of the logits; 0 for a token that does not count."""


def fused_linear_cross_entropy(
    x: Float[Array, "tokens embed"],
    table: Float[Array, "..."],
    labels: Int[Array, " tokens"],
    *,
    softcap: float | None = None,
    z_loss: float = 0.0,
    ignore_index: int = IGNORED,
    vocab: int | None = None,
    axes: tuple[str, ...] = (),
    vocab_first: bool = False,
    keep: bool = False,
    implementation: str = "auto",
    chunk_bytes: int = CHUNK_BYTES,
    tile: Tile | None = None,
    interpret: bool = False,
) -> TokenLoss:
    """Cross-entropy of `x @ table` against `labels`, token by token, with gradients for `x` and `table`.

    Args:
        x: What the head multiplies.
        table: The head's weight [embed, columns], or with `vocab_first` [columns, embed]; in x's dtype.
        labels: Columns of the whole vocabulary.
        softcap: Logits become `softcap * tanh(logit / softcap)`.
        z_loss: Weight of the squared log-sum-exp.
        ignore_index: The label of tokens that do not count. Any other must be a column that counts.
        vocab: Columns of the whole vocabulary that count, where others only pad it; None means all.
        axes: Mesh axes that split the vocabulary, inside `jax.shard_map`: rank r holds the r-th part of the columns.
        vocab_first: How `table` lies.
        keep: Where there is a derivative, keep an exponential of each logit, in x's dtype, from the forward to the
            backward, which is then without the matmul that recomputes them. Loss and log-sum-exp have the same bits,
            and gradients of logits are rounded twice instead of once (`kept.py`).
        implementation: `auto`, or by name: see `registry.REGISTRY`.
        chunk_bytes: Gradients of logits that exist at a time in the backward.
        tile: Of the kernel; None takes the device's.
        interpret: Run the kernel in Pallas' interpreter, on any device.

    Returns:
        Loss and log-sum-exp. Gradients flow through both.

    Raises:
        ValueError: If shapes or dtypes do not fit together, or the implementation that is named does not support them.
    """
    _check(x, table, labels, vocab_first, softcap)
    columns = table.shape[0 if vocab_first else 1]
    ranks = lax.axis_size(axes) if axes else 1
    head = Head(
        columns * ranks if vocab is None else vocab, tuple(axes), softcap, vocab_first, chunk_bytes, tile, interpret,
        keep,
    )  # fmt: skip
    if not 0 < head.vocab <= columns * ranks:
        raise ValueError(f"vocab is {head.vocab}, expected 1 to {columns * ranks}, the columns of the table")
    device = INTERPRETER if interpret else target()
    request = Request(x.shape[0], x.shape[1], columns, dtype=str(x.dtype), **device._asdict())
    name = REGISTRY.chosen(implementation, request).name
    nll, lse = _losses((name, head), *vary_alike((x, table, labels))[:2], labels)
    valid = labels != ignore_index
    lse = jnp.where(valid, lse, 0.0)
    return TokenLoss(jnp.where(valid, nll, 0.0) + z_loss * jnp.square(lse), lse)


type _Setting = tuple[str, Head]


def _losses_of(setting: _Setting, x: jax.Array, table: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(negative log-likelihood, log-sum-exp) of each token."""
    name, head = setting
    return _forward((name, replace(head, keep=False)), x, table, labels)[0]


def _forward(setting: _Setting, x: jax.Array, table: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
    name, head = setting
    local, columns = head.local_labels(table, labels), head.columns(table)
    statistics, saved = REGISTRY[name].statistics(head, x, table, local, columns)
    lse, label = merge_shards(statistics, head.axes)
    return (lse - label, lse), (x, table, local, columns, lse, label, saved)


def _backward(setting: _Setting, residuals: tuple, cotangents: tuple[jax.Array, jax.Array]) -> tuple:
    """Gradients of x (float32 sums over the chunks, then its dtype) and of the table (each element is one matmul's)."""
    name, head = setting
    x, table, local, columns, lse, label, saved = residuals
    of_nll, of_lse = cotangents
    token = Token(lse, of_nll + of_lse, of_nll, label)
    kernels = REGISTRY[name]
    if saved is not None:
        return *_from_saved(head, kernels.gradients_from_saved(head, saved, local, token), x, table, columns), None
    chunks = head.chunks(table, x.shape[0], x.dtype.itemsize, kernels.multiple)
    axis, of_table, of_x = _products(head)

    def of_chunk(index: jax.Array | int, width: int) -> tuple[jax.Array, jax.Array]:
        with jax.named_scope("recompute"):
            gradients = kernels.logit_gradients(head, x, table, local, columns, token, index, chunks.width, width)
        part = head.part(table, columns, index * chunks.width, width)
        dx = jnp.einsum(of_x, gradients, part, preferred_element_type=jnp.float32)
        return dx, jnp.einsum(of_table, gradients, x, preferred_element_type=jnp.float32).astype(table.dtype)

    def step(index: jax.Array, totals: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dx, part = of_chunk(index, chunks.width)
        return totals[0] + dx, lax.dynamic_update_slice_in_dim(totals[1], part, index * chunks.width, axis)

    if chunks.width == chunks.vocab:
        dx, d_table = of_chunk(0, chunks.vocab)
        return dx.astype(x.dtype), d_table, None
    zeros = jnp.zeros(x.shape, jnp.float32), jnp.zeros(table.shape, table.dtype)
    dx, d_table = lax.fori_loop(0, chunks.full, step, vary_over(zeros, varying_axes(x)))
    if chunks.rest:
        last, part = of_chunk(chunks.full, chunks.rest)
        dx = dx + last
        d_table = lax.dynamic_update_slice_in_dim(d_table, part, chunks.full * chunks.width, axis)
    return dx.astype(x.dtype), d_table, None


def _from_saved(
    head: Head, gradients: jax.Array, x: jax.Array, table: jax.Array, columns: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients of x and of the table: one matmul each, which writes what it has summed in float32 in their dtype."""
    _, of_table, of_x = _products(head)
    part = head.part(table, columns, 0, head.local_vocab(table))
    dx = jnp.einsum(of_x, gradients, part, preferred_element_type=x.dtype)
    d_table = jnp.einsum(of_table, gradients, x, preferred_element_type=table.dtype)
    # What needs dx waits for both: XLA would put the other off, and hold the gradients of all logits until then.
    return lax.optimization_barrier((dx, d_table))


def _products(head: Head) -> tuple[int, str, str]:
    """The table's axis of columns, and the einsums of its gradient and of that of x."""
    return (0, "tv,te->ve", "tv,ve->te") if head.vocab_first else (1, "tv,te->ev", "tv,ev->te")


_losses: Any = jax.custom_vjp(_losses_of, nondiff_argnums=(0,))
_losses.defvjp(_forward, _backward)


def _check(x: jax.Array, table: jax.Array, labels: jax.Array, vocab_first: bool, softcap: float | None) -> None:
    if x.ndim != 2 or table.ndim != 2 or x.shape[1] != table.shape[1 if vocab_first else 0]:
        dims = "[columns, embed]" if vocab_first else "[embed, columns]"
        raise ValueError(f"x {x.shape} and table {table.shape} do not fit: expected [tokens, embed] and {dims}")
    if labels.shape != x.shape[:1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"labels are {labels.dtype}{list(labels.shape)}; expected an integer for each row of x {x.shape}"
        )
    if x.dtype != table.dtype:
        raise ValueError(f"x is {x.dtype} and table {table.dtype}; expected one dtype")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap is {softcap}; expected a positive number, or None for no cap")
