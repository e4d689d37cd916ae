"""Reads a golden: a tiny model in Hugging Face's format, as `transformers` wrote it, and its logits there."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.config.kinds import ALL, layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.layer_packing import layer_models
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX, weight_specs
from jaxpar.interop.sources.hf_folder import HFFolder
from tests.reference.options import spelled_out
from tests.reference.tree import Tree, unflatten

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in FOLDER.glob("*/config.json")))
ROUTED = tuple(name for name in NAMES if re.search(r'experts": [^n]', (FOLDER / name / "config.json").read_text()))
"""Goldens with experts."""
BIDIRECTIONAL = tuple(name for name in NAMES if "ForMaskedLM" in (FOLDER / name / "config.json").read_text())
"""Goldens whose tokens see later ones."""
WITH_STATE = (
    "mamba2", "kimi_linear", "nemotron_h", "qwen3_next", "qwen3_5", "qwen3_5_moe", "minimax", "lfm2", "lfm2_moe",
    "granitemoehybrid", "gla_swa",
)  # fmt: skip
"""The goldens whose mixers have a state."""
MAPPINGS = (
    "pattern", "experts", "latent_attention", "linear_attention", "attention_temperature", "residual", "rope",
    "per_layer_embeddings", "altup",
)  # fmt: skip
"""Mappings of the `model` section."""
DENSE = tuple(name for name in NAMES if name not in (*ROUTED, *WITH_STATE, *BIDIRECTIONAL))
WITH_PEFT = tuple(sorted(path.stem for path in FOLDER.glob("peft/*.npz")))
"""Goldens with logits that PEFT computes with an adapter."""


def nested(leaves: Mapping[str, np.ndarray]) -> Tree:
    """Nested dict of leaves named like `layers.attention.query`."""
    return unflatten({tuple(name.split(".")): leaf for name, leaf in leaves.items()})


def pad_vocabulary(weights: Tree, multiple: int) -> Tree:
    """The tree with zero rows (embedding) and zero columns (head) up to a multiple."""
    tokens = weights["embedding"]["tokens"]
    missing = -len(tokens) % multiple
    padded = weights | {"embedding": weights["embedding"] | {"tokens": np.pad(tokens, ((0, missing), (0, 0)))}}
    if "head" in weights:
        padded["head"] = {"weight": np.pad(weights["head"]["weight"], ((0, 0), (0, missing)))}
    if "head_bias" in (final := weights.get("final_norm", {})):
        padded["final_norm"] = final | {"head_bias": np.pad(final["head_bias"], (0, missing))}
    return padded


def weights_of(source: HFFolder) -> Tree:
    """All weights in float32, layers of all kinds in one stack."""
    leaves = {}
    for name, spec in weight_specs(source.model, layer_kinds(source.model)[0]).items():
        whole = tuple(slice(0, size) for size in spec.shape)
        layers = range(source.model.layers) if name.startswith(LAYER_PREFIX) else None
        leaves[name.replace(LAYER_PREFIX, f"{LAYER_PREFIX}{ALL}.")] = source.read(name, layers, whole).astype(
            np.float32
        )
    return nested(leaves)


def layers_of(source: HFFolder) -> tuple[Tree, list[tuple[Tree, dict[str, Any]]]]:
    """The weights outside layers; those of each layer, with the options of the reference."""
    kinds, outside, layers = layer_kinds(source.model), {}, list[tuple[Tree, dict[str, Any]]]()
    for layer, (kind, model) in enumerate(zip(kinds, layer_models(source.model), strict=True)):
        own = {}
        for name, spec in weight_specs(source.model, kind).items():
            region, inside = tuple(slice(0, size) for size in spec.shape), name.startswith(LAYER_PREFIX)
            if inside:
                own[name.removeprefix(LAYER_PREFIX)] = source.read(name, [layer], region)[0].astype(np.float32)
            elif layer == 0:
                outside[name] = source.read(name, None, region).astype(np.float32)
        layers.append((nested(own), spelled_out(options_of(model)) | {"kind": kind}))
    return nested(outside), layers


def options_of(model: ModelConfig) -> dict[str, Any]:
    """The `model` section as a dict, without what has its default."""
    plain, usual = asdict(model), asdict(ModelConfig())
    options = {key: value for key, value in plain.items() if value != usual[key] or key in ("layers", "heads")}
    return options | {key: plain[key] for key in ("embed", "mlp", "rope")}


def section_of(model: ModelConfig) -> dict[str, Any]:
    """`options_of` as keys of a `ModelConfig`, whose mappings are dataclasses."""
    mappings = {name: getattr(model, name) for name in MAPPINGS}
    return {"kv_heads": None, "vocab_multiple": 16} | options_of(model) | mappings


def load(name: str, vocab_multiple: int = 1) -> tuple[Tree, dict[str, Any], np.ndarray, np.ndarray]:
    """A golden by name, one of `NAMES`.

    Returns:
        weights: float32 tree, the vocabulary padded with zeros to a multiple of `vocab_multiple`;
        options: those of the reference, `vocab` being the true size;
        tokens: int32 [batch, seq], whole rows of one document each;
        logits: float64 [batch, seq, vocab], not padded.
    """
    source = HFFolder(FOLDER / name)
    weights = pad_vocabulary(weights_of(source), vocab_multiple)
    return weights, spelled_out(options_of(source.model)), *tokens_and_logits(name)


def short_logits(name: str) -> np.ndarray:
    """Logits of a golden's first tokens where they are those of shorter rows alone: float64 [batch, seq, vocab]."""
    with np.load(FOLDER / name / "logits.npz", allow_pickle=False) as stored:
        return stored["short"]


def tokens_and_logits(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logits of a golden: int32 [batch, seq], float64 [batch, seq, vocab]."""
    with np.load(FOLDER / name / "logits.npz", allow_pickle=False) as stored:
        return stored["tokens"], stored["logits"]
