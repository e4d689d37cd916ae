"""Checks of latent attention: its widths, and what it is not combined with."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.schema import Config, ModelConfig


def check_latent_attention(config: Config) -> None:
    """Refuse widths that latent attention cannot have, and settings that it would not use or does not support."""
    model = config.model
    models = kind_models(model)
    for kind, one in models.items():
        _check_mixer(kind, one)
    latent = {kind: one.latent_attention for kind, one in models.items() if one.latent_attention is not None}
    for kind, attention in latent.items():
        key = key_of(kind, "latent_attention") if "latent_attention" in model.kinds.get(kind, {}) else _KEY
        _check_widths(key, attention)
        _check_alone(kind, models[kind])
    if not latent:
        return
    if model.kv_heads is not None:
        raise UserError(
            f"model.kv_heads: {model.kv_heads} would not be used, because {_KEY} makes keys and values for every query "
            "head; expected null"
        )
    if model.head_dim is not None and len(latent) == len(models):
        raise UserError(
            f"model.head_dim: {model.head_dim} would not be used, because {_KEY} has widths of its own; expected null"
        )
    if any(models[kind].rope.partial != 1 for kind in latent):
        raise UserError(f"model.rope.partial: beside {_KEY}, whose rope_dim rotates alone, expected 1")
    for name in ("query", "output"):
        if name in model.low_rank:
            raise UserError(
                f"model.low_rank.{name}: latent attention ({_KEY}) has no products of two yet; expected those of "
                "the feed-forward alone"
            )


_KEY = "model.latent_attention"


def _check_mixer(kind: str, model: ModelConfig) -> None:
    if model.latent_attention is None and model.mixer == "latent_attention":
        raise UserError(f"{key_of(kind, 'mixer')}: latent_attention has no widths; expected them as {_KEY}")
    if model.latent_attention is not None and model.mixer not in ("attention", "latent_attention"):
        raise UserError(f"{key_of(kind, 'mixer')}: {model.mixer}, beside {_KEY}; expected one of both")


def _check_widths(key: str, latent: LatentAttentionConfig) -> None:
    if latent.rope_dim % 2:
        raise UserError(f"{key}.rope_dim: rotary embeddings need an even width, got {latent.rope_dim}")


def _check_alone(kind: str, model: ModelConfig) -> None:
    """Options of other attention."""
    for name, why in (
        ("qk_norm", "its latent vectors have norms instead"),
        ("attention_bias", "its projections have no biases"),
        ("attention_sinks", "its heads have no sinks"),
        ("attention_gate", "its output has no gate"),
    ):
        if value := getattr(model, name):
            shown = str(value).lower()
            raise UserError(f"{key_of(kind, name)}: {shown}, beside {_KEY}: {why}; expected false")
