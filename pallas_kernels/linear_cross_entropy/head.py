"""Static arguments of a head and its loss, and the division of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

CHUNK_BYTES = 1 << 28
"""Gradients of logits that exist at a time in the backward, at most: 256 MiB."""


@dataclass(frozen=True)
class Tile:
    """Tile of one program of a kernel, and its compilation."""

    tokens: int
    vocab: int
    embed: int
    """Elements of the contraction per step."""
    warps: int
    stages: int
    """Depth of the pipeline of loads."""


@dataclass(frozen=True)
class Head:
    """A head and its loss; static under jit."""

    vocab: int
    """Columns that count; those behind them, over all shards, only pad the table."""
    axes: tuple[str, ...] = ()
    """Mesh axes that split the vocabulary: rank r holds columns [r * local, (r + 1) * local)."""
    softcap: float | None = None
    """Logits become `softcap * tanh(logit / softcap)`."""
    vocab_first: bool = False
    """The table is [vocab, embed], as of a tied embedding."""
    chunk_bytes: int = CHUNK_BYTES
    tile: Tile | None = None
    """Tile of the kernels; None takes the device's from `pallas_kernels.linear_cross_entropy.triton`."""
    interpret: bool = False
    """Run kernels in Pallas' interpreter."""
    keep: bool = False
    """Whether the forward saves logits (`saved_logits.SavedLogits`), so that the backward does not recompute them."""

    def local_vocab(self, table: jax.Array) -> int:
        """Columns of this shard."""
        return table.shape[0 if self.vocab_first else 1]

    def first_column(self, table: jax.Array) -> jax.Array | int:
        """Column of the whole vocabulary at which this shard begins."""
        return lax.axis_index(self.axes) * self.local_vocab(table) if self.axes else 0

    def columns(self, table: jax.Array) -> jax.Array:
        """Number of valid columns of this shard, as an int32 [1]."""
        live = jnp.clip(self.vocab - self.first_column(table), 0, self.local_vocab(table))
        return jnp.reshape(live, (1,)).astype(jnp.int32)

    def local_labels(self, table: jax.Array, labels: Int[Array, " tokens"]) -> Int[Array, " tokens"]:
        """The column of this shard that holds each label; -1 where it is in another, or is none."""
        local = labels - self.first_column(table)
        is_local = (local >= 0) & (local < self.local_vocab(table)) & (labels < self.vocab)
        return jnp.where(is_local, local, -1).astype(jnp.int32)

    def product(self, x: jax.Array, part: jax.Array) -> Float[Array, "tokens columns"]:
        """Logits before the cap, in float32."""
        equation = "te,ve->tv" if self.vocab_first else "te,ev->tv"
        return jnp.einsum(equation, x, part, preferred_element_type=jnp.float32)

    def cap(self, logits: jax.Array) -> jax.Array:
        """The cap, where there is one."""
        return logits if self.softcap is None else self.softcap * jnp.tanh(logits / self.softcap)

    def chunks(self, table: jax.Array, tokens: int, itemsize: int, multiple: int = 1) -> Chunks:
        """The widest chunks, of a multiple of `multiple` columns, whose gradients fit into `chunk_bytes`."""
        vocab = self.local_vocab(table)
        most = max(self.chunk_bytes // max(tokens * itemsize, 1) // multiple, 1) * multiple
        count = -(-vocab // most)
        width = -(-vocab // count // multiple) * multiple if count > 1 else vocab
        return Chunks(vocab, min(width, vocab))

    def part(
        self, table: jax.Array, columns: Int[Array, " one"], first: jax.Array | int, width: int
    ) -> Float[Array, "..."]:
        """Columns [first, first + width) of the table, with zeros in those that only pad it."""
        axis, ranks = 0 if self.vocab_first else 1, lax.axis_size(self.axes) if self.axes else 1
        part = lax.dynamic_slice_in_dim(table, first, width, axis)
        if self.vocab == self.local_vocab(table) * ranks:
            return part
        live = first + jnp.arange(width) < columns[0]
        return jnp.where(live[:, None] if self.vocab_first else live, part, jnp.zeros((), table.dtype))


@dataclass(frozen=True)
class Chunks:
    """Columns of a shard, cut into `full` chunks of `width` and a last one of `rest`."""

    vocab: int
    width: int

    @property
    def full(self) -> int:
        return self.vocab // self.width

    @property
    def rest(self) -> int:
        return self.vocab % self.width


class Statistics(NamedTuple):
    """Statistics of each token over the columns of a shard, or a part of it; float32."""

    peak: Float[Array, " tokens"]
    """The greatest logit, -inf where no column counts."""
    total: Float[Array, " tokens"]
    """Sum of exp(logit - peak)."""
    label: Float[Array, " tokens"]
    """The label's logit, 0 where the shard does not have it."""


def merge(parts: Statistics) -> Statistics:
    """Merge statistics of parts of the columns, [part, tokens]."""
    peak = parts.peak.max(0)
    base = jnp.where(peak == -jnp.inf, 0.0, peak)  # -inf - -inf would be NaN
    return Statistics(peak, (parts.total * jnp.exp(parts.peak - base)).sum(0), parts.label.sum(0))


def merge_shards(statistics: Statistics, axes: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """(log-sum-exp, label's logit) of each token over the whole vocabulary. Sends three floats per token."""
    peak, total, label = statistics
    if not axes:
        return peak + jnp.log(total), label
    top = lax.pmax(peak, axes)
    total = lax.psum(total * jnp.exp(peak - top), axes)
    return top + jnp.log(total), lax.psum(label, axes)


def live(columns: Int[Array, " one"], first: jax.Array | int, width: int) -> Bool[Array, " width"]:
    """Mask of the valid columns among [first, first + width)."""
    return first + jnp.arange(width) < columns[0]
