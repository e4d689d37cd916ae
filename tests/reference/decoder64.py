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
from jaxtyping import Array, Bool, Float, Float64, Int

from tests.reference import streams64
from tests.reference.options import ALL, OF_LAYERS, Options, complete
from tests.reference.rotary64 import rotate, yarn_magnitude
from tests.reference.tree import Tree

BATCH_KEYS = ("tokens", "labels", "mask", "segments", "positions", "indices")


def rms_norm(
    x: Float64[Array, "... width"], scale: Float64[Array, " width"], epsilon: float
) -> Float64[Array, "... width"]:
    """Root mean square normalisation (Zhang & Sennrich 2019, eq. 4)."""
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def layer_norm(x: Float64[Array, "... width"], weights: Tree, epsilon: float) -> Float64[Array, "... width"]:
    """Layer normalisation (Ba et al. 2016, eq. 4) with the biased variance, and those of the two weights that exist."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon) * weights.get("scale", 1.0) + weights.get("bias", 0.0)


def norm(x: Float64[Array, "... width"], tree: Tree, name: str, options: Options) -> Float64[Array, "... width"]:
    """The normalisation that `options` name, with the weights called `name` in `tree`; OLMo 1 has none."""
    weights = tree.get(name, {})
    if options["norm"].endswith("layernorm"):
        count = {"weightless_layernorm": 0, "unbiased_layernorm": 1, "layernorm": 2}[options["norm"]]
        assert len(weights.keys() & {"scale", "bias"}) == count
        return layer_norm(x, weights, options["norm_epsilon"])
    return rms_norm(x, factors(weights["scale"], options), options["norm_epsilon"])


def factors(scale: Float64[Array, "*dims"], options: Options) -> Float64[Array, "*dims"]:
    """What a root mean square norm multiplies by; Gemma holds its difference from 1."""
    return 1 + scale if options["norm"] == "zero_centered_rmsnorm" else scale


def norm_heads(
    x: Float64[Array, "batch seq heads width"], scale: Float64[Array, "..."], options: Options
) -> Float64[Array, "batch seq heads width"]:
    """Normalised queries or keys: each head (Qwen3, Gemma 3), or the heads side by side as one vector (OLMo 2)."""
    scale = factors(scale, options)
    if options["qk_norm"] == "projection":
        wide = rms_norm(x.reshape(*x.shape[:2], -1), scale.reshape(-1), options["norm_epsilon"])
        return wide.reshape(x.shape)
    if options["qk_norm"] == "layernorm":  # a scale for each head (Command R+)
        return layer_norm(x, {"scale": scale}, options["norm_epsilon"])
    return rms_norm(x, scale, options["norm_epsilon"])


def tempered(
    query: Float64[Array, "batch seq heads width"], positions: Int[Array, "batch seq"], options: Options
) -> Float64[Array, "batch seq heads width"]:
    """Queries that grow with the logarithm of their position (Nakanishi 2025, as Llama 4 and Ministral 3 have it)."""
    if not options["attention_temperature"]:
        return query
    grows = dict(options["attention_temperature"])
    steps = jnp.floor((positions + grows.get("offset", 0)) / grows["floor"])
    return query * (1 + grows["scale"] * jnp.log(1 + steps))[:, :, None, None]


def softcap(x: Float64[Array, "*dims"], cap: float | None) -> Float64[Array, "*dims"]:
    """`cap * tanh(x / cap)`; without a cap, x."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def visible(
    indices: Int[Array, "batch seq"], segments: Int[Array, "batch seq"], window: int | None, causal: bool = True
) -> Bool[Array, "batch seq seq"]:
    """True where a query may see a key (last axis): of the same segment, less than `window` indices away, and not
    later where it is causal."""
    distance = indices[:, :, None] - indices[:, None, :]
    allowed = segments[:, :, None] == segments[:, None, :]
    if causal:
        allowed &= distance >= 0
    return allowed if window is None else allowed & (jnp.abs(distance) < window)


def attention(
    x: Float64[Array, "batch seq embed"],
    weights: Tree,
    options: Options,
    batch: Mapping[str, Array],
    made: dict[str, tuple[Array, Array]] | None = None,
) -> Float64[Array, "batch seq embed"]:
    """Grouped-query attention (Vaswani et al. 2017, sec. 3.2; Ainslie et al. 2023); capped scores are capped scaled.

    `made` has the keys and values of the last layer of each kind, which layers share (`keys_of`).
    """
    if options["latent_attention"]:
        return latent_attention(x, weights, options, batch)
    query = positioned(projected(x, "query", weights, options), "query", weights, options, batch)
    query = tempered(query, batch["positions"], options)
    if options["keys_of"]:  # Gemma 3n
        key, value = made[options["keys_of"]]
    else:
        key = projected(x, "key", weights, options)
        value = key if options["keys_as_values"] else projected(x, "value", weights, options)
        key = positioned(key, "key", weights, options, batch)
        if options["value_norm"]:  # Gemma 4
            value = rms_norm(value, jnp.ones(value.shape[-1]), options["norm_epsilon"])
    if made is not None:
        made[options["kind"]] = key, value
    group = options["heads"] // options["kv_heads"]  # consecutive query heads share a key/value head
    key, value = jnp.repeat(key, group, axis=2), jnp.repeat(value, group, axis=2)
    probabilities = probabilities_of(query, key, options, batch, weights.get("sinks"))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)
    if "gate" in weights:  # Qwen3-Next
        mixed = mixed / (1 + jnp.exp(-jnp.einsum("bse,ehd->bshd", x, weights["gate"])))
    out = jnp.einsum("bqhd,hde->bqe", mixed, weights["output"])
    return out + weights["output_bias"] if options["attention_bias"] is True else out


def projected(
    x: Float64[Array, "batch seq embed"], name: str, weights: Tree, options: Options
) -> Float64[Array, "batch seq heads width"]:
    """Queries, keys or values with their bias, within their limit (OLMo 1)."""
    made = jnp.einsum("bse,ehd->bshd", x, weights[name])
    made = made + weights[f"{name}_bias"] if options["attention_bias"] else made
    limit = options["qkv_clip"]
    return made if limit is None else jnp.minimum(jnp.maximum(made, -limit), limit)


def positioned(
    x: Float64[Array, "batch seq heads width"], name: str, weights: Tree, options: Options, batch: Mapping[str, Array]
) -> Float64[Array, "batch seq heads width"]:
    """Queries or keys after their norm and their rotation."""
    normed = lambda x: norm_heads(x, weights[f"{name}_norm"], options)
    if options["qk_norm"] == "unweighted":  # Llama 4
        x = rms_norm(x, jnp.ones(x.shape[-1]), options["norm_epsilon"])
    elif options["qk_norm"] not in (False, "rotated"):
        x = normed(x)
    if options["position"] == "rope":
        x = rotate(x, batch["positions"], options)
    return normed(x) if options["qk_norm"] == "rotated" else x  # Hunyuan


def probabilities_of(
    query: Array, key: Array, options: Options, batch: Mapping[str, Array], sinks: Array | None = None
) -> Array:
    """The weight of each key for each query, [batch, heads, queries, keys]."""
    scale = options["attention_scale"]
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scores = softcap(jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale, options["attention_softcap"])
    allowed = visible(batch["indices"], batch["segments"], options["window"], options["causal"])
    if options["chunk"]:
        chunks = batch["positions"] // options["chunk"]
        allowed = allowed & (chunks[:, :, None] == chunks[:, None, :])
    scores = jnp.where(allowed[:, None], scores, -jnp.inf)
    if sinks is not None:  # one more key, whose value is 0 (gpt-oss)
        last = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, last], axis=-1)
    return jax.nn.softmax(scores, axis=-1)[..., : key.shape[1]]


def latent_attention(
    x: Float64[Array, "batch seq embed"], weights: Tree, options: Options, batch: Mapping[str, Array]
) -> Float64[Array, "batch seq embed"]:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, appendix C, equations 37 to 47)."""
    sizes = dict(options["latent_attention"])
    turned = {**options, "head_dim": sizes["rope_dim"]}
    rotated = lambda vectors: rotate(vectors, batch["positions"], turned) if options["position"] == "rope" else vectors
    of_latent = lambda latent, name: rms_norm(
        latent, factors(weights[name], options), sizes.get("norm_epsilon") or options["norm_epsilon"]
    )
    if sizes["query_rank"] is None:
        query = jnp.einsum("bse,ehd->bshd", x, weights["query"])
    else:
        query = jnp.einsum("bsr,rhd->bshd", of_latent(x @ weights["query_down"], "query_norm"), weights["query_up"])
    latent, shared = jnp.split(x @ weights["kv_down"], [sizes["kv_rank"]], axis=-1)
    latent, shared = of_latent(latent, "kv_norm"), rotated(shared[:, :, None])
    key, value = (jnp.einsum("bsr,rhd->bshd", latent, weights[name]) for name in ("key_up", "value_up"))
    key = jnp.concatenate([key, jnp.repeat(shared, options["heads"], axis=2)], axis=-1)
    still = sizes["nope_dim"]
    query = jnp.concatenate([query[..., :still], rotated(query[..., still:])], axis=-1)
    if options["rope_scaling"] == "yarn" and options["rope_mscale_all_dim"]:
        query = query * yarn_magnitude(options, options["rope_mscale_all_dim"]) ** 2
    query = tempered(query, batch["positions"], options)
    return jnp.einsum("bhqk,bkhd,hde->bqe", probabilities_of(query, key, options, batch), value, weights["output"])


def feed_forward(
    x: Float64[Array, "batch seq embed"], weights: Tree, options: Options
) -> Float64[Array, "batch seq embed"]:
    """SwiGLU or GeGLU (Shazeer 2020), GELU by tanh (Hendrycks & Gimpel 2016) or squared ReLU (So et al. 2021)."""

    def project(name: str) -> Float64[Array, "batch seq mlp"]:
        hidden = x @ weights[name]
        return hidden + weights[name + "_bias"] if options["mlp_bias"] else hidden

    def gate_of() -> Float64[Array, "batch seq mlp"]:
        share = options["activation_sparsity"]
        return streams64.sparse(project("gate"), share) if share else project("gate")

    up = project("up")
    if options["activation"] in ("swiglu", "clamped_swiglu"):
        hidden = gated(gate_of(), up, options)
    elif options["activation"] == "geglu":
        hidden = gelu(gate_of()) * up
    elif options["activation"] == "gelu":
        hidden = gelu(up)
    elif options["activation"] == "xielu":
        hidden = xielu(up, weights)
    elif options["activation"] == "exact_geglu":
        hidden = exact_gelu(gate_of()) * up
    elif options["activation"] == "exact_gelu":
        hidden = exact_gelu(up)
    else:
        hidden = jnp.maximum(up, 0.0) ** 2
    out = hidden @ weights["down"]
    return out + weights["down_bias"] if options["mlp_bias"] else out


def gated(gate: Array, up: Array, options: Options) -> Array:
    """SwiGLU, or that of gpt-oss's published code: both cut off at 7, a sigmoid of 1.702 times the gate, up plus 1."""
    if options["activation"] == "swiglu":
        return gate * jax.nn.sigmoid(gate) * up
    gate, up = jnp.where(gate > 7, 7.0, gate), jnp.where(jnp.abs(up) > 7, 7 * jnp.sign(up), up)
    return (up + 1) * gate / (1 + jnp.exp(-1.702 * gate))


def gelu(x: Float64[Array, "*dims"]) -> Float64[Array, "*dims"]:
    """The approximation of GELU by tanh (Hendrycks & Gimpel 2016, sec. 2)."""
    return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def xielu(x: Float64[Array, "*dims"], weights: Tree) -> Float64[Array, "*dims"]:
    """xIELU (Huang & Schlag 2024, eq. 12) with a slope of 1/2 at 0."""
    above, below = (jnp.log(1 + jnp.exp(weights[name])) for name in ("alpha_p", "alpha_n"))
    negative = jnp.where(x > 0, 0.0, x)
    return x / 2 + jnp.where(x > 0, above * x * x, (0.5 + below) * (jnp.exp(negative) - 1 - negative))


def exact_gelu(x: Float64[Array, "*dims"]) -> Float64[Array, "*dims"]:
    """GELU by the distribution function of the normal distribution (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1 + jax.scipy.special.erf(x / math.sqrt(2)))


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
        own = {**options, **dict(options[OF_LAYERS][index])}
        run = functools.partial(decoder_layer, weights=layer, options=own, batch=batch)
        stack = stream_layer(stack, run, layer, own)
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
        "tokens": tokens.astype(np.int32),
        "labels": np.roll(tokens, -1, axis=1).astype(np.int32),
        "mask": mask,
        "segments": np.ones((rows, length), np.int32),
        "positions": indices.copy(),
        "indices": indices.copy(),
        "examples": np.arange(rows, dtype=np.int32),
    }
