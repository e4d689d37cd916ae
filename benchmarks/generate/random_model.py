"""A Llama-shaped model with random weights, in the format that both sides of the benchmark read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jaxpar.config.schema import ModelConfig
from jaxpar.interop.config_json import config_of, family_for
from jaxpar.interop.conversion.export import DTYPE_NAMES, TOKEN_IDS
from jaxpar.interop.mapping.family import tensors_of

SMALL = ModelConfig(layers=8, embed=512, heads=8, kv_heads=4, mlp=1408, vocab=16384, tied=True, vocab_multiple=1)
"""32 million weights, a quarter of them in the embedding."""
DRAWN = 2**20 + 7
"""So many values are drawn, and repeat: drawing all weights of a large model would take longer than using them."""


def write_random_model(folder: Path, model: ModelConfig, length: int, dtype: str = "float32") -> int:
    """Write `config.json` and `model.safetensors`; returns the number of weights.

    Args:
        folder: exists.
        model: of a family of Hugging Face's format.
        length: tokens that a row may have.
        dtype: of the weights.
    """
    family, drawn = family_for(model), np.random.default_rng(0).standard_normal(DRAWN, np.float32) * 0.02
    shapes = {tensor.name: tensor.laid.shape for tensor in tensors_of(family, model)}
    tensors = {
        name: (np.resize(drawn, shape) if len(shape) > 1 else np.ones(shape)).astype(DTYPE_NAMES[dtype])
        for name, shape in shapes.items()
    }
    config = {**config_of(family, model, dict.fromkeys(TOKEN_IDS), length), "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.size for tensor in tensors.values())
