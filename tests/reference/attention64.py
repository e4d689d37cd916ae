"""The attention of the float64 reference, grouped-query and latent, by dense masks."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int

from tests.reference.norms64 import factors, norm_heads, rms_norm
from tests.reference.options import Options
from tests.reference.rotary64 import rotate, yarn_magnitude
from tests.reference.tree import Tree


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
