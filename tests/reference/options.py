"""Model options of the reference: a plain dict with the names of the configuration's `model` section.

Those of `rope` and `residual` are spelled out as `rope_base`, ...
"""

from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any]

DEFAULTS: Options = {
    "kv_heads": None, "head_dim": None, "norm": "rmsnorm", "norm_placement": "pre", "norm_epsilon": 1e-5,
    "residual_mixer_stream": 1.0, "residual_mixer_output": 1.0, "residual_mlp_stream": 1.0, "residual_mlp_output": 1.0,
    "position": "rope", "rope_base": 10000.0, "rope_partial": 1.0, "rope_scaling": "none", "rope_factor": 8.0,
    "rope_original_length": 8192, "rope_low_frequency": 1.0, "rope_high_frequency": 4.0, "rope_beta_fast": 32.0,
    "rope_beta_slow": 1.0, "rope_truncate": True, "rope_attention_factor": None, "rope_short_factors": None,
    "rope_long_factors": None, "rope_mscale": None, "rope_mscale_all_dim": None, "qk_norm": False, "qkv_clip": None,
    "value_norm": False, "keys_as_values": False, "keys_of": None, "kind": "all", "layer_scale": False,
    "per_layer_embeddings": None, "attention_bias": False, "attention_scale": None, "latent_attention": None,
    "altup": None, "activation_sparsity": 0.0, "laurel_rank": None, "mlp_bias": False, "activation": "swiglu",
    "tied": False, "embedding_scale": False, "window": None, "chunk": None, "attention_temperature": None,
    "causal": True, "head_transform": False, "head_bias": False, "token_types": None, "logit_divisor": 1.0,
    "logit_softcap": None, "attention_softcap": None, "z_loss": 0.0,
}  # fmt: skip
NESTED = ("rope", "residual")
"""Mappings whose members are spelled out."""
ALL = "all"
"""The kind of layers of a model without a pattern."""
OF_LAYERS = "of_layers"
"""In complete options: for each layer the (name, value) pairs in which its kind differs."""
REQUIRED = ("layers", "embed", "heads", "mlp", "vocab")


def complete(options: Options) -> dict[str, Any]:
    """Options with the defaults filled in; names that the reference does not use (presets, dropout, ...) are dropped.

    Raises KeyError if one of `REQUIRED` is missing.
    """
    options = spelled_out(options)
    full = {name: options[name] for name in REQUIRED}
    full |= {name: options.get(name, default) for name, default in DEFAULTS.items()}
    full["kv_heads"] = full["kv_heads"] or full["heads"]
    full["head_dim"] = full["head_dim"] or full["embed"] // full["heads"]
    for name in ("latent_attention", "attention_temperature", "per_layer_embeddings", "altup"):
        if full[name]:
            full[name] = tuple(sorted(dict(full[name]).items()))
    full[OF_LAYERS] = options.get(OF_LAYERS) or tuple(
        tuple(sorted(options.get("kinds", {}).get(kind, {}).items())) for kind in kinds_of_layers(options)
    )
    return full


def spelled_out(options: Options) -> dict[str, Any]:
    """Options, and those of kinds, with `rope_base`, ... in place of the mappings `rope` and `residual`."""
    flat = {key: value for key, value in options.items() if key not in NESTED}
    flat |= {f"{name}_{key}": value for name in NESTED for key, value in options.get(name, {}).items()}
    if "kinds" in flat:
        flat["kinds"] = {kind: spelled_out(own) for kind, own in flat["kinds"].items()}
    return flat


def kinds_of_layers(options: Options) -> list[str]:
    """The name of each layer's kind in `options["kinds"]`, as its pattern spells them; `ALL` without a pattern."""
    pattern = options.get("pattern")
    if not pattern:
        return [ALL] * options["layers"]
    kinds, suffix = list(pattern.get("prefix", ())), list(pattern.get("suffix", ()))
    while len(kinds) + len(suffix) < options["layers"]:
        kinds += pattern["unit"]
    assert len(kinds) + len(suffix) == options["layers"], f"{pattern} makes no {options['layers']} layers"
    return kinds + suffix
