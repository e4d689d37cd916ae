"""Tiny random weights and batches on which the reference itself is tested."""

from typing import Any

import numpy as np

from tests.reference.options import ALL, Options, complete
from tests.reference.tree import Tree


def random_weights(options: Options, *, padded_vocab: int, positions: int = 16, seed: int = 0) -> Tree:
    """A weight tree in float64 with every leaf that `options` ask for, norms and biases not at their neutral values."""
    full = complete(options)
    generator = np.random.default_rng(seed)
    layers, embed, mlp = full["layers"], full["embed"], full["mlp"]
    heads, kv_heads, width = full["heads"], full["kv_heads"], full["head_dim"]

    def normal(*shape: int) -> np.ndarray:
        return 0.3 * generator.standard_normal(shape)

    neutral = float(full["norm"] != "zero_centered_rmsnorm")

    def norm(*shape: int) -> Tree:
        if full["norm"] == "weightless_layernorm":
            return {}
        scale = {"scale": neutral + normal(*shape)}
        return scale | {"bias": normal(*shape)} if full["norm"] == "layernorm" else scale

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
        attention["query_norm"] = neutral + normal(layers, heads, width)
        attention["key_norm"] = neutral + normal(layers, kv_heads, width)
    elif full["qk_norm"] is True:
        attention |= {"query_norm": neutral + normal(layers, width), "key_norm": neutral + normal(layers, width)}
    ups = ("gate", "up") if full["activation"] in ("swiglu", "geglu", "exact_geglu") else ("up",)
    feed_forward = {name: normal(layers, embed, mlp) for name in ups} | {"down": normal(layers, mlp, embed)}
    if full["activation"] == "xielu":
        feed_forward |= {name: normal(layers, 1) for name in ("alpha_p", "alpha_n")}
    if full["mlp_bias"]:
        feed_forward |= {name + "_bias": normal(layers, mlp) for name in ups} | {"down_bias": normal(layers, embed)}
    embedding = {"tokens": normal(padded_vocab, embed)}
    if full["position"] == "learned":
        embedding["positions"] = normal(positions, embed)
    if full["token_types"]:
        embedding["token_types"] = normal(full["token_types"], embed)
    places = {"post": ["post_"], "sandwich": ["", "post_"]}.get(full["norm_placement"], [""])
    parts = ("attention",) if full["norm_placement"] == "parallel" else ("attention", "mlp")
    norms = {f"{place}{part}_norm": norm(layers, embed) for place in places for part in parts}
    norms, final = {name: one for name, one in norms.items() if one}, norm(embed)
    if rank := full["laurel_rank"]:
        norms |= {"laurel": {"left": normal(layers, embed, rank), "right": normal(layers, rank, embed)}}
        norms |= {"post_laurel_norm": norm(layers, embed)}
    streams = dict(full["altup"] or {}).get("streams", 4) if full["altup"] else 1
    if streams > 1:
        shapes = {"router": (embed, streams), "prediction": (streams,) * 3, "correction": (streams, streams)}
        norms |= {"altup": {name: normal(layers, *shape) for name, shape in shapes.items()}}
        norms |= {"altup_norm": norm(layers, embed)}
        embedding |= {f"stream_{index}": normal(embed, embed) for index in range(1, streams)}
        final |= {f"stream_{index}": normal(embed, embed) for index in range(1, streams)}
    weights: dict[str, Any] = {
        "embedding": embedding,
        "layers": {ALL: norms | {"attention": attention, "mlp": feed_forward}},
    }
    if full["head_transform"]:
        final["transform"] = {"weight": normal(embed, embed), "norm": norm(embed)}
        if full["mlp_bias"]:
            final["transform"]["bias"] = normal(embed)
    if full["head_bias"]:
        final["head_bias"] = normal(padded_vocab)
    if final:
        weights["final_norm"] = final
    if not full["tied"]:
        weights["head"] = {"weight": normal(embed, padded_vocab)}
    return weights


def packed_batch(vocab: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Two rows of eight indices: documents of 3 and 5 tokens, and one of 6 with two indices of padding."""
    tokens = np.random.default_rng(seed).integers(0, vocab, (2, 8)).astype(np.int32)
    return {
        "tokens": tokens,
        "labels": np.roll(tokens, -1, axis=1),
        "mask": np.array([[1, 1, 0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0, 0, 0]], np.float32),
        "segments": np.array([[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 0]], np.int32),
        "positions": np.array([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1]], np.int32),
        "indices": np.tile(np.arange(8, dtype=np.int32), (2, 1)),
        "examples": np.arange(2, dtype=np.int32),
    }
