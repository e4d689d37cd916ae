"""A plain decoder in float64 that the tests take as the truth.

One device, a Python loop over the layers, dense masks, nothing recomputed, nothing sharded, and no code shared with
jaxpar: it is written from the papers and from the shapes of the weight tree alone. Everything runs inside
`jax.enable_x64`, so the rest of a test session keeps float32; what goes in and comes out are NumPy arrays.

Weights, a nested dict (L layers, E embed, H query heads, K key/value heads, D head width, F mlp width, V padded
vocabulary): `embedding.tokens [V, E]`, `embedding.positions [P, E]`, `layers.all.attention.query [L, E, H, D]`,
`key`/`value [L, E, K, D]`, `output [L, H, D, E]`, their biases (of latent attention with ranks R and Q, widths N + P of
queries and W of values, `kv_down [L, E, R + P]`, `kv_norm [L, R]`, `key_up [L, R, H, N]`,
`value_up [L, R, H, W]`, and `query [L, E, H, N + P]` or `query_down [L, E, Q]`, `query_norm [L, Q]` and
`query_up [L, Q, H, N + P]`), `query_norm`/`key_norm [L, D]` (over a whole projection
[L, H, D] and [L, K, D]), `layers.all.mlp.gate`/`up [L, E, F]`, `down [L, F, E]`, the norms' `scale` and `bias`,
`head.weight [E, V]`. Layers of several kinds are in one stack, in the order of the model. Model options have the
names of the configuration's `model` section. Dropout is not part of the reference.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from tests.reference import streams64
from tests.reference.attention64 import attention, softcap
from tests.reference.feed_forward64 import exact_gelu, feed_forward
from tests.reference.norms64 import norm
from tests.reference.options import ALL, OF_LAYERS, Options, complete
from tests.reference.tree import Tree

BATCH_KEYS = ("tokens", "labels", "mask", "segments", "positions", "indices")


def decoder_layer(
    x: Float64[Array, "batch seq embed"], weights: Tree, options: Options, batch: Mapping[str, Array]
) -> Float64[Array, "batch seq embed"]:
    """Attention and feed-forward, with norms before them, behind them (OLMo 2, arXiv:2501.00656), or both (Gemma 2)."""
    entered = x
    for name in ("attention", "mlp"):

        def block(h: Array, name: str = name) -> Array:
            if name == "attention":
                return attention(h, weights[name], options, batch)
            return feed_forward(h, weights[name], options)

        x = added(x, block, name, weights, options, entered)
        x = learned(x, entered, name, weights, options)
    return x


def learned(x: Array, entered: Array, name: str, weights: Tree, options: Options) -> Array:
    """The stream behind a mixer with a learned residual (LAuReL, Menghani et al. 2024, as Gemma 3n has it)."""
    if name == "mlp" or not options["laurel_rank"]:
        return x
    h = norm(entered, weights, f"{name}_norm", options)
    low = h @ weights["laurel"]["left"] @ weights["laurel"]["right"]
    return (x + h + norm(low, weights, "post_laurel_norm", options)) / math.sqrt(2)


def stream_layer(streams: list[Array], run: Callable[[Array], Array], weights: Tree, options: Options) -> list[Array]:
    """All residual streams behind a layer, whose blocks are `run` on one of them."""
    if not options["altup"]:
        return [run(streams[0])]
    active = dict(options["altup"]).get("active", 0)
    of_layer = weights["altup"], lambda x: norm(x, weights, "altup_norm", options)
    before = streams64.predicted(streams, active, *of_layer)
    return streams64.corrected(before, active, run(before[active]), *of_layer)


def added(
    x: Array, block: Callable[[Array], Array], name: str, weights: Tree, options: Options, entered: Array
) -> Array:
    """The residual stream plus the output of a block, by the placement of norms; MiniMax-01's stream is normed.
    Parallel blocks read the input of the layer, by the norm of the first block (Cohere) or one norm each (GPT-NeoX)."""
    place, of = options["norm_placement"], "mlp" if name == "mlp" else "mixer"
    read = entered if place in ("parallel", "parallel_norms") else x
    before = ("attention" if "attention" in weights else "mixer") if place == "parallel" else name
    h = x if place == "post" else norm(read, weights, before + "_norm", options)
    x = h if place == "stream" or (place == "stream_mixer" and name != "mlp") else x
    h = block(h)
    h = norm(h, weights, f"post_{name}_norm", options) if place in ("post", "sandwich") else h
    return options[f"residual_{of}_stream"] * x + options[f"residual_{of}_output"] * h


def embedding_scale(options: Options) -> float:
    """The factor of token embeddings: the root of their width, a number, or none."""
    scale = options["embedding_scale"]
    return math.sqrt(options["embed"]) if scale is True else float(scale or 1)


def stream(weights: Tree, options: Options, batch: Mapping[str, Array]) -> Float64[Array, "batch seq embed"]:
    """The residual stream after the last layer."""
    x = weights["embedding"]["tokens"][batch["tokens"]]
    x = x * embedding_scale(options)
    if options["position"] == "learned":
        x = x + weights["embedding"]["positions"][batch["positions"]]
    if options["token_types"]:  # BERT
        x = x + weights["embedding"]["token_types"][0]
    stack = streams64.first(x, weights["embedding"], options)
    for index in range(options["layers"]):
        layer = jax.tree.map(lambda stacked, index=index: stacked[index], weights["layers"][ALL])
        of_layer = {**options, **dict(options[OF_LAYERS][index])}
        run = functools.partial(decoder_layer, weights=layer, options=of_layer, batch=batch)
        stack = stream_layer(stack, run, layer, of_layer)
    return streams64.last(stack, weights.get("final_norm", {}))


def forward(weights: Tree, options: Options, batch: Mapping[str, Array]) -> Float64[Array, "batch seq vocab"]:
    """Logits over the padded vocabulary; -inf where the id is not in the vocabulary."""
    return scores_after(stream(weights, options, batch), weights, options)


def scores_after(x: Float64[Array, "batch seq embed"], weights: Tree, options: Options) -> Float64[Array, "..."]:
    """The logits after a residual stream."""
    head = weights["embedding"]["tokens"].T if options["tied"] else weights["head"]["weight"]
    x = norm(x, weights, "final_norm", options)
    if options["head_transform"]:  # BERT, ModernBERT
        transform = weights["final_norm"]["transform"]
        x = norm(exact_gelu(x @ transform["weight"] + transform.get("bias", 0.0)), transform, "norm", options)
    scores = x @ head / options["logit_divisor"]
    if options["head_bias"]:
        scores = scores + weights["final_norm"]["head_bias"]
    capped = softcap(scores, options["logit_softcap"])
    return jnp.where(jnp.arange(head.shape[1]) < options["vocab"], capped, -jnp.inf)


def mean_loss(weights: Tree, options: Options, batch: Mapping[str, Array]) -> Float64[Array, ""]:
    """`sum(mask * (nll + z_loss * logsumexp^2)) / sum(mask)` (z-loss: Chowdhery et al. 2022, sec. 5)."""
    scores = forward(weights, options, batch)
    total = jax.nn.logsumexp(scores, axis=-1)
    label = jnp.take_along_axis(scores, batch["labels"][..., None], axis=-1)[..., 0]
    per_token = total - label + options["z_loss"] * total**2
    return jnp.sum(batch["mask"] * per_token) / jnp.sum(batch["mask"])


@functools.lru_cache(maxsize=64)
def _compiled(function: Any, options: tuple[tuple[str, Any], ...]) -> Any:
    """`function(weights, batch)` compiled for these options, so that twenty steps trace once.

    Without the compiler's optimizations: compiling takes far longer than running what the tests ask.
    """
    plain = {"xla_backend_optimization_level": 0}
    return jax.jit(lambda weights, batch: function(weights, dict(options), batch), compiler_options=plain)


def _call(function: Any, weights: Tree, options: Options, batch: Mapping[str, Any]) -> Any:
    """Runs `function` on float64 copies inside the x64 scope and brings NumPy arrays back out of it."""
    full = tuple(sorted(complete(options).items()))
    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
        inputs = {name: np.asarray(batch[name], np.float64 if name == "mask" else np.int64) for name in BATCH_KEYS}
        return jax.tree.map(np.asarray, _compiled(function, full)(doubles, inputs))


_gradients = jax.value_and_grad(mean_loss)


def logits(weights: Tree, options: Options, batch: Mapping[str, Any]) -> Float[np.ndarray, "batch seq vocab"]:
    """Float64 logits of a batch, -inf in the padded columns of the vocabulary."""
    return _call(forward, weights, options, batch)


def loss(weights: Tree, options: Options, batch: Mapping[str, Any]) -> float:
    """Float64 mean loss of a batch over its unmasked tokens."""
    return float(_call(mean_loss, weights, options, batch))


def loss_and_gradients(weights: Tree, options: Options, batch: Mapping[str, Any]) -> tuple[float, Tree]:
    """Mean loss of a batch over its unmasked tokens, and its gradient for every weight, both in float64."""
    value, gradients = _call(_gradients, weights, options, batch)
    return float(value), gradients


def weighted_gradients(weights: Tree, options: Options, batch: Mapping[str, Any], of_token: np.ndarray) -> Tree:
    """Gradients of the sum of `of_token` [batch, seq] times the negative log-likelihood of each token, in float64.

    They come from those of a mean, whose weights are not below 0: once for each sign.
    """
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape), weights)
    for sign in (1.0, -1.0):
        mask = np.maximum(sign * of_token, 0)
        if mask.any():
            _, gradients = loss_and_gradients(weights, options, {**batch, "mask": mask})
            factor = sign * mask.sum()
            total = jax.tree.map(lambda leaf, more, factor=factor: leaf + factor * more, total, gradients)
    return total


def log_likelihoods(
    logits: Float[np.ndarray, "batch seq vocab"], labels: Int[np.ndarray, "batch seq"]
) -> Float[np.ndarray, "batch seq"]:
    """The log-probability of each label by `logits`."""
    of_labels = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return of_labels - np.logaddexp.reduce(logits, axis=-1)


def plain_batch(tokens: Int[np.ndarray, "batch seq"]) -> dict[str, np.ndarray]:
    """A batch of whole rows, one document each; the last token of a row has no label and does not count."""
    rows, length = tokens.shape
    indices = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    mask = np.ones((rows, length), np.float32)
    mask[:, -1] = 0
    return {
        "tokens": tokens.astype(np.int32), "labels": np.roll(tokens, -1, axis=1).astype(np.int32), "mask": mask,
        "segments": np.ones((rows, length), np.int32), "positions": indices.copy(), "indices": indices.copy(),
        "examples": np.arange(rows, dtype=np.int32),
    }  # fmt: skip
