"""Output head and cross-entropy in one, a tile of tokens at a time: the logits never exist whole.

The backward of a tile runs right after its forward, while its logits exist. The derivative of the whole then only
scales gradients that are already computed. Source: ALST (arXiv:2506.13996, section 3.1), after Liger's fused
linear cross-entropy (arXiv:2410.10989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree, Shaped

from jaxpar.config.schema import ModelConfig
from jaxpar.layers.context import sequence_part
from jaxpar.layers.tiles import from_tiles, into_tiles, scan_tiles
from jaxpar.mesh.axes import AXES, vary, varying_axes
from jaxpar.mesh.collectives import gather_sequence, reduce_sum, scatter_sequence
from jaxpar.model.head import bound_logits, project, project_gradients
from jaxpar.model.loss import likeliest, reshape_to_labels, top_choices, vocabulary_cross_entropy
from pallas_kernels.vjp_parts import custom_vjp

type Parts = Float[Array, "batch part embed"]
"""The residual stream of this rank's tokens."""
type Table = Float[Array, "..."]
"""This rank's part of the head's weight: [embed, columns], or [columns, embed] of a tied embedding."""
type Labels = Int[Array, "batch seq *label"]
"""The labels of the joined parts of the tensor ranks, one or several of each token."""
type Mask = Float[Array, "batch seq *label"]
type Sums = tuple[Float[Array, ""], Float[Array, ""]]
"""(objective, negative log-likelihood) over the tokens that count."""


class HeadLoss(NamedTuple):
    """The head and its loss, as far as they are known when compiling."""

    model: ModelConfig
    axes: tuple[str, ...]
    """Mesh axes that split the vocabulary."""
    tiles: int = 1
    """Tiles of tokens, of which one has logits at a time."""
    trained: bool = True
    """Whether the table has gradients."""


class TokenLosses(NamedTuple):
    """The head over a microbatch: the `Head` of `jaxpar.runtime.objective`."""

    x: Parts
    table: Table
    head: HeadLoss
    stream: Parts | None = None
    """The residual stream after the last layer, before the head's norm."""

    def cross_entropy(self, labels: Labels, weights: Mask) -> Sums:
        """The weighted sums over tokens: with z-loss and a derivative, and without."""
        weights = vary(weights, set(AXES) - set(self.head.axes))
        return tiled_cross_entropy(self.x, self.table, labels, weights, self.head)

    def with_temperature(self, temperature: float) -> TokenLosses:
        """The head whose logits, after the model's cap, are divided by a temperature."""
        model, cap = self.head.model, self.head.model.logit_softcap
        if temperature == 1.0:
            return self
        model = replace(model, logit_softcap=None if cap is None else cap / temperature)
        return self._replace(x=self.x / temperature, head=self.head._replace(model=model))

    def log_probabilities(self, labels: Labels) -> Float[Array, "batch seq *label"]:
        """The log-probability of each label, without a derivative."""
        x, table = lax.stop_gradient((self.x, self.table))
        return tiled_scores(x, table, labels, self.head)[0]

    def pooled(self, tokens: Float[Array, "batch span seq"]) -> Float[Array, "batch span embed"]:
        """Weighted sums over all tokens of a row of the residual stream, the same on all ranks of context and of those
        that split the vocabulary. Sends an `all_reduce` of the sums over context and tensor."""
        assert self.stream is not None, "the stream of a loss"
        of_part = sequence_part(vary(tokens).swapaxes(1, 2)).swapaxes(1, 2)
        sums = jnp.einsum("bst,bte->bse", of_part, self.stream.astype(jnp.float32))
        sums = reduce_sum(sums, ("context", "tensor"))
        # Ranks that split the vocabulary over pipeline stages have the same stream, and share its cotangent.
        alike = tuple(axis for axis in self.head.axes if axis != "tensor")
        return reduce_sum(sums, alike) / lax.axis_size(alike) if alike else sums


@custom_vjp(4)
def tiled_cross_entropy(x: Parts, table: Table, labels: Labels, mask: Mask, head: HeadLoss) -> Sums:
    """Sums over the tokens of `mask`: (nll + z_loss * lse^2, which has a derivative; nll, which has none), in nats.

    `labels` and `mask` are of the joined parts of the tensor ranks; a tile is `ceil(batch * part / tiles)` tokens of
    each of them.

    Holds, for one tile, float32 logits and their gradient in compute dtype; in training also gradients of `x` (compute
    dtype) and, where it is `trained`, of `table` (float32). Without a derivative no gradient is computed. Sends what
    `gather_sequence` of `x`, `scatter_sequence` of its gradient and `vocabulary_cross_entropy` send, in `tiles` parts.
    """

    def step(sums: Sums, tile: PyTree) -> tuple[Sums, None]:
        part, labels, mask = tile
        logits = project(gather_sequence(part[None]), table, head.model)
        return _add(sums, _sums(logits, labels, mask, head)), None

    return scan_tiles(step, _zeros(head.axes), _tiles(x, head.tiles, labels, mask))[0]


def tiled_scores(
    x: Parts, table: Table, labels: Labels, head: HeadLoss
) -> tuple[Float[Array, "batch seq"], Int[Array, "batch seq"]]:
    """The log-probability of each label in nats, and 1 where it is the first of the likeliest tokens, else 0.

    Arguments are those of `tiled_cross_entropy`. Holds float32 logits of one tile, and has no derivative.
    """

    def step(_: None, tile: PyTree) -> tuple[None, PyTree]:
        part, labels = tile
        logits = project(gather_sequence(part[None]), table, head.model)
        logits = bound_logits(logits, head.model, head.axes)
        nll, _lse = vocabulary_cross_entropy(logits, labels, head.axes)
        is_first = reshape_to_labels(likeliest(logits, head.axes), labels) == labels
        return None, (-nll[0], is_first[0].astype(jnp.int32))

    _, (scores, firsts) = scan_tiles(step, None, _tiles(x, head.tiles, labels))
    return _parted(scores, x.shape[:2]), _parted(firsts, x.shape[:2])


def tiled_mixed_scores(
    xs: Sequence[Parts], tables: Sequence[Table], weights: Float[Array, "batch seq model"], labels: Labels,
    head: HeadLoss,
) -> tuple[Float[Array, "batch seq"], Int[Array, "batch seq"]]:  # fmt: skip
    """`tiled_scores` of a mixture of models, whose log weights at each token are `weights`."""

    def step(_: None, tile: PyTree) -> tuple[None, PyTree]:
        parts, labels, weights = tile
        of_models = []
        for part, table in zip(parts, tables, strict=True):
            logits = bound_logits(project(gather_sequence(part[None]), table, head.model), head.model, head.axes)
            _nll, lse = vocabulary_cross_entropy(logits, labels, head.axes)
            of_models.append(logits - lse[..., None])
        logits = jax.nn.logsumexp(jnp.stack(of_models, -1) + weights[..., None, :], axis=-1)
        nll, _lse = vocabulary_cross_entropy(logits, labels, head.axes)
        return None, (-nll[0], (likeliest(logits, head.axes) == labels)[0].astype(jnp.int32))

    parts = [_tiles(x, head.tiles)[0] for x in xs]
    tiles = parts, *_tiles(xs[0], head.tiles, labels, weights)[1:]
    _, (scores, firsts) = scan_tiles(step, None, tiles)
    return _parted(scores, xs[0].shape[:2]), _parted(firsts, xs[0].shape[:2])


def tiled_choices(
    x: Parts, table: Table, choices: int, head: HeadLoss
) -> tuple[Int[Array, "batch seq choice"], Float[Array, "batch seq choice"]]:
    """The likeliest tokens, likeliest first, and their log-probabilities in nats, without a derivative. Holds float32
    logits of one tile."""

    def step(_: None, tile: PyTree) -> tuple[None, PyTree]:
        logits = bound_logits(project(gather_sequence(tile[0][None]), table, head.model), head.model, head.axes)
        tokens, largest = top_choices(logits, choices, head.axes)
        _nll, lse = vocabulary_cross_entropy(logits, jnp.zeros_like(tokens[..., 0]), head.axes)
        return None, (tokens[0], (largest - lse[..., None])[0])

    _, (tokens, likely) = scan_tiles(step, None, _tiles(x, head.tiles))
    return _parted(tokens, x.shape[:2]), _parted(likely, x.shape[:2])


def _forward(
    x: jax.Array, table: jax.Array, labels: jax.Array, mask: jax.Array, head: HeadLoss
) -> tuple[Sums, tuple[jax.Array, jax.Array | None]]:
    def step(carry: tuple[Sums, jax.Array | None], tile: PyTree) -> tuple[tuple[Sums, jax.Array | None], jax.Array]:
        (sums, d_table), (part, labels, mask) = carry, tile
        joined = gather_sequence(part[None])
        of_logits = lambda logits: _sums(logits, labels, mask, head)
        objective, pullback, nll = jax.vjp(of_logits, project(joined, table, head.model), has_aux=True)
        (d_logits,) = pullback(vary(jnp.ones_like(objective), varying_axes(objective)))
        dx, new = project_gradients(joined, table, d_logits, head.model)
        with jax.named_scope("gradients"):
            d_table = None if not head.trained else new if d_table is None else d_table + new
        return (_add(sums, (objective, nll)), d_table), scatter_sequence(dx)[0]

    # The first tile is no part of the loop: its gradient is what the others are added to, and no zeros are. With zeros,
    # Llama-3-70B on 256 H100s waits for 6.9% of its step in place of less than 5%. The barrier ends it before the loop
    # begins, so that the logits of one tile exist.
    tiles = _tiles(x, head.tiles, labels, mask)
    carry, first = step((_zeros(head.axes), None), jax.tree.map(lambda tile: tile[0], tiles))
    if head.tiles > 1:
        carry, first, tiles = lax.optimization_barrier((carry, first, tiles))
    (sums, d_table), others = scan_tiles(step, carry, jax.tree.map(lambda tile: tile[1:], tiles))
    dx = jnp.concatenate([first[None], others])
    return sums, (from_tiles(dx, x.shape[0] * x.shape[1]).reshape(x.shape), d_table)


def _backward(
    head: HeadLoss, residuals: tuple[jax.Array, jax.Array | None], cotangents: Sums
) -> tuple[jax.Array, jax.Array | None, None, None]:
    (dx, d_table), (scale, _) = residuals, cotangents
    scaled = lambda gradient: None if gradient is None else (gradient * scale).astype(dx.dtype)
    return (dx * scale).astype(dx.dtype), scaled(d_table), None, None


tiled_cross_entropy.defvjp(_forward, _backward)


def _sums(logits: jax.Array, labels: jax.Array, mask: jax.Array, head: HeadLoss) -> Sums:
    """The sums over one tile."""
    model, axes = head.model, head.axes
    nll, lse = vocabulary_cross_entropy(bound_logits(logits, model, axes), labels, axes)
    total = jnp.sum(mask * nll)
    return (
        total + model.z_loss * jnp.sum(mask * reshape_to_labels(lse, labels) ** 2) if model.z_loss > 0 else total
    ), total


def _zeros(axes: tuple[str, ...]) -> Sums:
    zero = vary(jnp.float32(0), set(AXES) - set(axes))
    return zero, zero


def _add(a: Sums, b: Sums) -> Sums:
    return a[0] + b[0], a[1] + b[1]


def _tiles(x: Parts, tiles: int, *of_tokens: Shaped[Array, "batch seq *label"]) -> tuple[jax.Array, ...]:
    """Tiles of this rank's tokens, [tile, tokens, embed]; and of what belongs to the tokens that `gather_sequence`
    makes of a tile, [tile, 1, tokens of all tensor ranks], those of the first rank first."""

    def joined(x: jax.Array) -> jax.Array:
        batch, seq, *label = x.shape
        ranks = lax.axis_size("tensor")
        of_rank = x.reshape(batch, ranks, seq // ranks, *label).swapaxes(0, 1).reshape(ranks, -1, *label)
        parts = jax.vmap(lambda tokens: into_tiles(tokens, tiles), out_axes=1)(of_rank)
        return parts.reshape(parts.shape[0], 1, -1, *label)

    return into_tiles(x.reshape(-1, x.shape[-1]), tiles), *map(joined, of_tokens)


def _parted(
    tiles: Shaped[Array, "tile tile_tokens *label"], shape: tuple[int, ...]
) -> Shaped[Array, "batch seq *label"]:
    """The values of the tokens of tiles, in the order of the sequence, where `shape` is [batch, part]."""
    ranks, (batch, part), label = lax.axis_size("tensor"), shape, tiles.shape[2:]
    of_rank = tiles.reshape(len(tiles), ranks, -1, *label).swapaxes(0, 1).reshape(ranks, -1, *label)[:, : batch * part]
    return of_rank.reshape(ranks, batch, part, *label).swapaxes(0, 1).reshape(batch, ranks * part, *label)
