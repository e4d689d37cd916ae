"""SpikingBrain-7B (arXiv:2509.05276) in float64, token by token, by the names of its published tensors.

Even layers have gated linear attention: a ReLU of queries and keys, log decays logsigmoid(x W1 W2 + b) / 16 of each dim
of a key, keys, values and decays of few heads that groups of queries share, and a norm of each head. Odd layers have
attention with a window and rotary embeddings. Queries, keys and values have biases (Qwen 2.5). NumPy alone, and no code
shared with jaxpar or the other references.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]
"""By name; matrices are [outputs, inputs]."""


def rms(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * scale


def projected(x: np.ndarray, layer: Tensors, name: str, heads: int) -> np.ndarray:
    """Tokens by heads by width."""
    return (x @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", 0.0)).reshape(len(x), heads, -1)


def linear(x: np.ndarray, layer: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    heads, few = config["num_attention_heads"], config["num_key_value_heads"]
    q = np.maximum(projected(x, layer, "attn.q_proj", heads), 0)
    k = np.maximum(projected(x, layer, "attn.k_proj", few), 0)
    v = projected(x, layer, "attn.v_proj", few)
    gate = projected(x @ layer["attn.gk_proj.0.weight"].T, layer, "attn.gk_proj.1", few)
    decay = np.exp(-np.logaddexp(0, -gate) / 16)
    state, rows = np.zeros((few, k.shape[2], v.shape[2])), []
    for token in range(len(x)):
        state = decay[token, :, :, None] * state + k[token, :, :, None] * v[token, :, None, :]
        made = [q[token, head] @ state[head * few // heads] / np.sqrt(q.shape[2]) for head in range(heads)]
        rows.append(rms(np.array(made), layer["attn.g_norm.weight"], config["norm_eps"]).ravel())
    return np.array(rows) @ layer["attn.o_proj.weight"].T


def rotated(x: np.ndarray, theta: float) -> np.ndarray:
    half = x.shape[2] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def windowed(x: np.ndarray, layer: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    heads, few = config["num_attention_heads"], config["num_key_value_heads"]
    q = rotated(projected(x, layer, "attn.q_proj", heads), config["rope_theta"])
    k = rotated(projected(x, layer, "attn.k_proj", few), config["rope_theta"])
    v, rows = projected(x, layer, "attn.v_proj", few), []
    for token in range(len(x)):
        first, made = max(0, token + 1 - config["sliding_window"]), []
        for head in range(heads):
            of = head * few // heads
            scores = k[first : token + 1, of] @ q[token, head] / np.sqrt(q.shape[2])
            shares = np.exp(scores - scores.max())
            made.append(shares / shares.sum() @ v[first : token + 1, of])
        rows.append(np.concatenate(made))
    return np.array(rows) @ layer["attn.o_proj.weight"].T


def logits(tensors: Tensors, config: Mapping[str, Any], tokens: np.ndarray) -> np.ndarray:
    """[row, seq, vocab] of tokens [row, seq]."""
    doubles = {name: leaf.astype(np.float64) for name, leaf in tensors.items()}
    return np.stack([_of_row(doubles, config, row) for row in tokens])


def _of_row(tensors: Tensors, config: Mapping[str, Any], tokens: np.ndarray) -> np.ndarray:
    x, epsilon = tensors["model.embeddings.weight"][tokens], config["norm_eps"]
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        layer = {name.removeprefix(prefix): leaf for name, leaf in tensors.items() if name.startswith(prefix)}
        mixer = windowed if index in config["attn_layers"] else linear
        x = x + mixer(rms(x, layer["attn_norm.weight"], epsilon), layer, config)
        h = rms(x, layer["mlp_norm.weight"], epsilon)
        gate, up = (h @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + gate / (1 + np.exp(-gate)) * up @ layer["mlp.down_proj.weight"].T
    return rms(x, tensors["model.norm.weight"], epsilon) @ tensors["lm_head.weight"].T
