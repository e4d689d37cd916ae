"""Checks of the model's shape."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.bounds import COUNT, spell_limit
from jaxpar.config.checks.sizes import divides
from jaxpar.config.counting import head_dim, kv_heads, padded_vocab, rotary_dim, window_of
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import check_kinds, key_of, kind_model, kind_models, layer_kinds
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.spelling import did_you_mean, quoted


def check_model(config: Config) -> None:
    """Refuse sizes that do not fit each other, and settings that a kind of layers cannot have."""
    model = config.model
    check_kinds(model)
    if model.keys_of is not None:
        raise UserError(f"model.keys_of: {quoted(model.keys_of, 80)} would be of all layers; expected it in a kind")
    for kind, layer in kind_models(model).items():
        _check_head_widths(kind, layer)
        if layer.keys_of is not None:
            _check_shared_keys(model, kind, layer, layer.keys_of)
        if layer.position == "rope" and layer.latent_attention is None:
            _check_rotary_width(kind, layer)
        if "learned" in (layer.position, model.position) and layer.position != model.position:
            raise UserError(
                f"{key_of(kind, 'position')}: {layer.position}, and model.position is {model.position}; learned "
                "positions are of the whole model, so expected the same"
            )
        _check_scaling(kind, layer)
    if model.position == "learned" and config.data.sequence_length > model.max_positions:
        raise UserError(
            f"data.sequence_length: {config.data.sequence_length} is more than the learned positions, "
            f"model.max_positions ({model.max_positions})"
        )


def _check_head_widths(kind: str, model: ModelConfig) -> None:
    divides("model.heads", model.heads, key_of(kind, "kv_heads"), kv_heads(model))
    if model.head_dim is None and model.latent_attention is None:
        divides("model.embed", model.embed, "model.heads", model.heads, "; or set model.head_dim")


def _check_shared_keys(model: ModelConfig, kind: str, layer: ModelConfig, source: str) -> None:
    """Refuse a kind whose keys and values are of layers that have none, or others, or that come later."""
    key, kinds = key_of(kind, "keys_of"), layer_kinds(model)
    if source not in model.kinds:
        near = did_you_mean(source, model.kinds) or f"; there are {', '.join(model.kinds)}"
        raise UserError(f"{key}: {quoted(source, 80)} is not declared in model.kinds{near}")
    other = kind_model(model, source)
    if other.keys_of is not None or other.mixer != "attention" or other.latent_attention is not None:
        raise UserError(f"{key}: layers of kind {source} make no keys and values of heads; expected a kind that does")
    if layer.mixer != "attention" or layer.latent_attention is not None:
        raise UserError(f"{key}: {source}, and layers of kind {kind} have another mixer than attention; expected null")
    for name, one in (("kv_heads", kv_heads), ("head_dim", head_dim), ("window", window_of), ("chunk", _chunk)):
        if one(layer) != one(other):
            raise UserError(
                f"{key_of(kind, name)}: {one(layer)}, and {one(other)} in layers of kind {source}, whose keys and "
                f"values they share ({key}); expected the same"
            )
    if kinds.index(kind) < kinds.index(source):
        raise UserError(f"{key}: no layer of kind {source} is before the first of kind {kind}; expected one")


def _chunk(model: ModelConfig) -> int | None:
    return model.chunk


def _check_scaling(kind: str, model: ModelConfig) -> None:
    rope = model.rope
    if rope.scaling == "llama3" and rope.low_frequency >= rope.high_frequency:
        raise UserError(
            f"{key_of(kind, 'rope.low_frequency')}: expected less than model.rope.high_frequency "
            f"({rope.high_frequency}), got {rope.low_frequency}"
        )
    if rope.scaling == "yarn" and rope.beta_slow > rope.beta_fast:
        raise UserError(
            f"{key_of(kind, 'rope.beta_slow')}: expected at most model.rope.beta_fast ({rope.beta_fast}), "
            f"got {rope.beta_slow}"
        )
    if rope.scaling == "yarn" and rope.base <= 1:
        raise UserError(f"{key_of(kind, 'rope.base')}: yarn scaling needs more than 1, got {rope.base}")
    if rope.scaling == "longrope":
        _check_factors(kind, model)


def _check_factors(kind: str, model: ModelConfig) -> None:
    """Refuse LongRoPE without a factor for each pair of dims that rotates."""
    pairs, rope = rotary_dim(model) // 2, model.rope
    for name, factors in (("short_factors", rope.short_factors), ("long_factors", rope.long_factors)):
        if len(factors or ()) != pairs:
            raise UserError(
                f"{key_of(kind, f'rope.{name}')}: longrope scaling needs a number for each pair of dims that rotates, "
                f"{pairs}, got {len(factors or ())}"
            )
    if rope.original_length == 1:
        raise UserError(f"{key_of(kind, 'rope.original_length')}: longrope scaling needs more than 1, got 1")


def _check_rotary_width(kind: str, model: ModelConfig) -> None:
    if model.rope.partial == 1 and head_dim(model) % 2:
        raise UserError(f"model.head_dim: rotary embeddings need an even width, got {head_dim(model)}")
    if (width := rotary_dim(model)) % 2 or not width:
        raise UserError(
            f"{key_of(kind, 'rope.partial')}: {model.rope.partial} of {head_dim(model)} dims "
            f"(model.head_dim) is {width}; rotary embeddings need an even number, at least 2"
        )


def check_table(config: Config) -> None:
    """Products of keys that are each in range: what no machine can hold is refused before anything is built."""
    model = config.model
    rows = padded_vocab(replace(model, vocab=model.vocab or 1))
    if rows > COUNT:
        raise UserError(
            f"model.vocab: {model.vocab} is padded to {rows}, a multiple of model.vocab_multiple "
            f"({model.vocab_multiple}); expected at most {spell_limit(COUNT)}"
        )
