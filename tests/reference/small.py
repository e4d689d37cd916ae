"""Tiny random weights and batches on which the reference itself is tested."""

from typing import Any

import numpy as np

from tests.reference.options import ALL, Options, complete
from tests.reference.tree import Tree


class _Draws:
    """Random arrays in the shapes that options ask for; the order of the calls decides their values."""

    def __init__(self, options: Options, seed: int):
        self.options = complete(options)
        self.generator = np.random.default_rng(seed)
        self.neutral = float(self.options["norm"] != "zero_centered_rmsnorm")

    def normal(self, *shape: int) -> np.ndarray:
        """Values around 0."""
        return 0.3 * self.generator.standard_normal(shape)

    def scale(self, *shape: int) -> np.ndarray:
        """Scales around the neutral value."""
        return self.neutral + self.normal(*shape)

    def norm(self, *shape: int) -> Tree:
        """The weights of a norm."""
        if self.options["norm"] == "weightless_layernorm":
            return {}
        scale = {"scale": self.scale(*shape)}
        return scale | {"bias": self.normal(*shape)} if self.options["norm"] == "layernorm" else scale


def random_weights(options: Options, *, padded_vocab: int, positions: int = 16, seed: int = 0) -> Tree:
    """A weight tree in float64 with every leaf that `options` ask for, norms and biases not at their neutral values."""
    draws = _Draws(options, seed)
    full, normal = draws.options, draws.normal
    embed = full["embed"]
    attention, feed_forward = _attention(draws), _feed_forward(draws)
    embedding = {"tokens": normal(padded_vocab, embed)}
    if full["position"] == "learned":
        embedding["positions"] = normal(positions, embed)
    if full["token_types"]:
        embedding["token_types"] = normal(full["token_types"], embed)
    norms, final = _norms(draws), draws.norm(embed)
    if full["laurel_rank"]:
        norms |= _laurel(draws)
    streams = dict(full["altup"] or {}).get("streams", 4) if full["altup"] else 1
    if streams > 1:
        norms |= _altup(draws, streams)
        embedding |= {f"stream_{index}": normal(embed, embed) for index in range(1, streams)}
        final |= {f"stream_{index}": normal(embed, embed) for index in range(1, streams)}
    weights: dict[str, Any] = {
        "embedding": embedding,
        "layers": {ALL: norms | {"attention": attention, "mlp": feed_forward}},
    }
    if full["head_transform"]:
        final["transform"] = {"weight": normal(embed, embed), "norm": draws.norm(embed)}
        if full["mlp_bias"]:
            final["transform"]["bias"] = normal(embed)
    if full["head_bias"]:
        final["head_bias"] = normal(padded_vocab)
    if final:
        weights["final_norm"] = final
    if not full["tied"]:
        weights["head"] = {"weight": normal(embed, padded_vocab)}
    return weights


def _attention(draws: _Draws) -> Tree:
    full, normal, scale = draws.options, draws.normal, draws.scale
    layers, embed, width = full["layers"], full["embed"], full["head_dim"]
    heads, kv_heads = full["heads"], full["kv_heads"]
    attention = {
        "query": normal(layers, embed, heads, width),
        "key": normal(layers, embed, kv_heads, width),
        "value": normal(layers, embed, kv_heads, width),
        "output": normal(layers, heads, width, embed),
    }
    if full["attention_bias"]:
        attention |= {
            "query_bias": normal(layers, heads, width),
            "key_bias": normal(layers, kv_heads, width),
            "value_bias": normal(layers, kv_heads, width),
        }
    if full["attention_bias"] is True:
        attention["output_bias"] = normal(layers, embed)
    if full["qk_norm"] in ("projection", "layernorm"):
        attention |= {"query_norm": scale(layers, heads, width), "key_norm": scale(layers, kv_heads, width)}
    elif full["qk_norm"] is True:
        attention |= {"query_norm": scale(layers, width), "key_norm": scale(layers, width)}
    return attention


def _feed_forward(draws: _Draws) -> Tree:
    full, normal = draws.options, draws.normal
    layers, embed, mlp = full["layers"], full["embed"], full["mlp"]
    ups = ("gate", "up") if full["activation"] in ("swiglu", "geglu", "exact_geglu") else ("up",)
    weights = {name: normal(layers, embed, mlp) for name in ups} | {"down": normal(layers, mlp, embed)}
    if full["activation"] == "xielu":
        weights |= {name: normal(layers, 1) for name in ("alpha_p", "alpha_n")}
    if full["mlp_bias"]:
        weights |= {name + "_bias": normal(layers, mlp) for name in ups} | {"down_bias": normal(layers, embed)}
    return weights


def _norms(draws: _Draws) -> Tree:
    """The norms of all layers' blocks that have weights."""
    full = draws.options
    places = {"post": ["post_"], "sandwich": ["", "post_"]}.get(full["norm_placement"], [""])
    parts = ("attention",) if full["norm_placement"] == "parallel" else ("attention", "mlp")
    shape = full["layers"], full["embed"]
    norms = {f"{place}{part}_norm": draws.norm(*shape) for place in places for part in parts}
    return {name: norm for name, norm in norms.items() if norm}


def _laurel(draws: _Draws) -> Tree:
    """The learned residual of all layers (LAuReL)."""
    layers, embed, rank = draws.options["layers"], draws.options["embed"], draws.options["laurel_rank"]
    low_rank = {"left": draws.normal(layers, embed, rank), "right": draws.normal(layers, rank, embed)}
    return {"laurel": low_rank, "post_laurel_norm": draws.norm(layers, embed)}


def _altup(draws: _Draws, streams: int) -> Tree:
    """The predictions and corrections of several residual streams in all layers (AltUp)."""
    layers, embed = draws.options["layers"], draws.options["embed"]
    shapes = {"router": (embed, streams), "prediction": (streams,) * 3, "correction": (streams, streams)}
    altup = {name: draws.normal(layers, *shape) for name, shape in shapes.items()}
    return {"altup": altup, "altup_norm": draws.norm(layers, embed)}
