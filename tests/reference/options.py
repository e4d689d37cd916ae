"""Model options of the reference: a plain dict with the names of the configuration's `model` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any]

DEFAULTS: Options = {
    "kv_heads": None,
    "head_dim": None,
    "norm": "rmsnorm",
    "norm_epsilon": 1e-5,
    "position": "rope",
    "rope_base": 10000.0,
    "rope_scaling": "none",
    "rope_factor": 8.0,
    "rope_original_length": 8192,
    "rope_low_frequency": 1.0,
    "rope_high_frequency": 4.0,
    "qk_norm": False,
    "attention_bias": False,
    "mlp_bias": False,
    "activation": "swiglu",
    "tied": False,
    "window": None,
    "logit_softcap": None,
    "attention_softcap": None,
    "z_loss": 0.0,
}
REQUIRED = ("layers", "embed", "heads", "mlp", "vocab")


def complete(options: Options) -> dict[str, Any]:
    """Options with the defaults filled in; names that the reference does not use (presets, dropout, ...) are dropped.

    Raises KeyError if one of `REQUIRED` is missing.
    """
    full = {name: options[name] for name in REQUIRED}
    full |= {name: options.get(name, default) for name, default in DEFAULTS.items()}
    full["kv_heads"] = full["kv_heads"] or full["heads"]
    full["head_dim"] = full["head_dim"] or full["embed"] // full["heads"]
    return full
