"""Checks of a model: its input, its blocks, its low-rank matrices and its size. All raise `UserError`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import is_dataclass, replace
from math import prod

from jaxpar.config.bounds import PARAMETERS, WIDTH
from jaxpar.config.checks.sizes import known
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.reading.typed import spell
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.spelling import did_you_mean, join_or, quoted
from jaxpar.layers.counting import parameter_count
from jaxpar.layers.declared import declare_layer, feed_forward_classes, mixer_classes, supports_experts
from jaxpar.layers.inputs.input import TIED, input_class, refuse_without_batches
from jaxpar.layers.inputs.per_layer import TABLE
from jaxpar.layers.residual.altup import stream_matrices
from jaxpar.layout.checks.experts import check_experts


def check_known(key: str, name: str, known: Collection[str], noun: str) -> None:
    """Refuse a `name` that the layers of the model do not have; the message suggests one of those `known`."""
    if name not in known:
        raise UserError(
            f"{key}: {quoted(name, 80)} is no {noun} of this model's layers"
            f"{did_you_mean(name, known) or f'; there are {join_or(known)}'}"
        )


def check_input(config: Config) -> None:
    """Refuse models and tasks that the input does not support."""
    model = replace(config.model, vocab=config.model.vocab or 1)
    kind = input_class(model)
    kind.check(model)
    weights, name = kind.declare(model), f"model.input: {model.input} has no table of"
    if not weights:
        raise UserError(f"model.input: {model.input} declares no weights; expected one at least, as a projection has")
    if model.tied and TIED not in weights:
        raise UserError(f"model.tied: true, and {name} tokens for the head to share; expected false")
    if model.embedding_scale and TIED not in weights:
        raise UserError(f"model.embedding_scale: {spell(model.embedding_scale)}, and {name} tokens; expected false")
    if model.position == "learned" and "positions" not in weights:
        raise UserError(f"model.position: learned, and {name} positions; expected rope or none")
    if (inputs := model.per_layer_embeddings) is not None and TABLE not in weights:
        raise UserError(f"model.per_layer_embeddings.width: {inputs.width}, and {name} inputs of layers; expected null")
    if missing := [one for one in stream_matrices(model) if one not in weights]:
        raise UserError(
            f"model.altup: several streams, and model.input: {model.input} has no {missing[0]}, the "
            "matrix into the second; expected null"
        )
    if config.evaluation.sample_tokens:
        refuse_without_batches(model, f"a sample (evaluation.sample_tokens: {config.evaluation.sample_tokens})")


WITH_LAUREL = ("pre", "sandwich")
"""The placements of norms with which layers have a learned residual."""

OF_SOME_MIXERS = (
    "qk_norm", "attention_bias", "attention_scale", "attention_softcap", "attention_sinks", "attention_gate",
    "window", "causal", "chunk", "attention_temperature", "linear_attention", "qkv_clip", "value_norm",
    "keys_as_values",
)  # fmt: skip
"""Keys of `model` that only some mixers read (`Block.reads`)."""


def check_blocks(config: Config) -> None:
    """Refuse models that a mixer or a router does not support, settings that no mixer reads, experts of a feed-forward
    without the non-linearity that they compute, and layers none of which has a mixer."""
    check_experts(config)
    _check_mixing(config.model)
    _check_read(config.model)
    _check_streams(config.model)
    for kind, layer in kind_models(config.model).items():
        _check_sparsity(kind, layer)
        if layer.chunk is not None and not layer.causal:
            raise UserError(
                f"{key_of(kind, 'chunk')}: {layer.chunk}, and model.causal: false; chunks are of causal attention"
            )
        if layer.chunk is not None and layer.window is not None:
            raise UserError(
                f"{key_of(kind, 'chunk')}: {layer.chunk}, beside {key_of(kind, 'window')}: {layer.window}; expected "
                "one of both"
            )
        for mixer in mixer_classes(layer):
            mixer.check(layer, kind)
        if layer.experts is not None and not supports_experts(layer.activation):
            raise UserError(
                f"{key_of(kind, 'activation')}: {layer.activation} declares no routed_inputs, as Gated and Plain do, "
                f"so experts cannot compute it; expected one that does, or {key_of(kind, 'experts')}: null"
            )


def check_convolutions(config: Config) -> None:
    """Refuse context ranks with fewer tokens than a short convolution reaches back to, and ticks in which its message,
    a permute, would be left out."""
    parallel, context = config.parallel, known(config.parallel, "context")
    for kind, layer in kind_models(config.model).items() if context > 1 else ():
        weights = [item for part in declare_layer(layer).parts for item in part.weights.items()]
        reach = max((weight.shape[-1] - 1 for name, weight in weights if name.endswith("taps")), default=0)
        if reach and parallel.pipe_ticks == "branching":
            raise UserError(
                f"parallel.pipe_ticks: branching needs layers without permutes, and {key_of(kind, 'mixer')}: "
                f"{layer.mixer} has a short convolution, which permutes between ranks of parallel.context ({context}); "
                "expected uniform"
            )
        if (tokens := config.data.sequence_length // context) < reach:
            raise UserError(
                f"parallel.context: {context} leaves each rank {tokens} tokens of a row (data.sequence_length); "
                f"expected {reach} at least, as the short convolution of {key_of(kind, 'mixer')}: {layer.mixer} "
                "reaches back so far"
            )


def _check_mixing(model: ModelConfig) -> None:
    """Refuse layers without a block, and models in which no token sees another."""
    models = kind_models(model)
    for kind, layer in models.items():
        if not (mixer_classes(layer) or feed_forward_classes(layer)):
            raise UserError(
                f"{key_of(kind, 'activation')}: none, and the mixer is none too, so that a layer has no block; "
                "expected one of the two"
            )
    if not any(map(mixer_classes, models.values())):
        mixers = ", ".join(f"{key_of(kind, 'mixer')}: {layer.mixer}" for kind, layer in models.items())
        raise UserError(f"{mixers}: no layer mixes tokens; expected a mixer that does in one of them")


def _check_streams(model: ModelConfig) -> None:
    """Refuse an active stream that does not exist, and a learned residual where no mixer has an input to learn from."""
    if (altup := model.altup) is not None and altup.active >= altup.streams:
        raise UserError(
            f"model.altup.active: {altup.active}, of {altup.streams} streams (model.altup.streams); expected at most "
            f"{altup.streams - 1}"
        )
    for kind, layer in kind_models(model).items() if model.laurel_rank is not None else ():
        if layer.norm_placement not in WITH_LAUREL or len(mixer_classes(layer)) != 1:
            raise UserError(
                f"model.laurel_rank: {model.laurel_rank} beside {key_of(kind, 'norm_placement')}: "
                f"{layer.norm_placement} and {key_of(kind, 'mixer')}: {layer.mixer}; expected {join_or(WITH_LAUREL)}, "
                "and one mixer"
            )


def _check_sparsity(kind: str, model: ModelConfig) -> None:
    """Refuse sparse gates of a feed-forward without gates, or of experts."""
    feed_forwards = feed_forward_classes(model)
    if model.activation_sparsity and (model.experts is not None or not all(one.sparse for one in feed_forwards)):
        other = "experts" if model.experts is not None else f"{key_of(kind, 'activation')}: {model.activation}"
        raise UserError(
            f"{key_of(kind, 'activation_sparsity')}: {model.activation_sparsity:g}, and {other} cannot have sparse "
            "gates; expected 0, or a feed-forward with gates, such as geglu, and no experts"
        )


def _check_read(model: ModelConfig) -> None:
    """Refuse a key of some mixers that is set in layers none of whose mixers reads it."""
    models, plain = kind_models(model), ModelConfig()
    for kind, layer in models.items():
        if not model.causal and any("causal" not in mixer.reads for mixer in mixer_classes(layer)):
            raise UserError(
                f"model.causal: false, and the mixer {layer.mixer} sees earlier tokens alone; expected true, or "
                f"another {key_of(kind, 'mixer')}"
            )
    for key in OF_SOME_MIXERS:
        kinds = [kind for kind, layer in models.items() if getattr(layer, key) != getattr(plain, key)]
        if kinds and not any(key in mixer.reads for kind in kinds for mixer in mixer_classes(models[kind])):
            layer = models[kinds[0]]
            value = "" if is_dataclass(getattr(layer, key)) else f"{str(getattr(layer, key)).lower()} "
            raise UserError(
                f"{key_of(kinds[0], key)}: {value}would not be used, because the mixer {layer.mixer} does not read it; "
                f"expected {'false' if getattr(plain, key) is False else 'null'}"
            )


def check_low_rank(model: ModelConfig) -> None:
    """Refuse `model.low_rank` of what is not a matrix of a layer, or of a rank that the matrix cannot have."""
    layers = [declare_layer(replace(layer, low_rank={})) for layer in kind_models(model).values()]
    most: dict[str, int] = {}
    for part in (part for layer in layers for part in layer.parts):
        for name in (name for group in part.groups if not group.exact for name in group.weights):
            if part.is_factored(name):  # whatever the configuration says
                continue
            spec = part.weights[name]
            inputs = prod(spec.shape[: spec.inputs])
            most[name] = min(inputs, spec.size // inputs, most.get(name, WIDTH))
    for name, rank in model.low_rank.items():
        check_known("model.low_rank", name, most, "matrix")
        if not 1 <= rank <= most[name]:
            raise UserError(
                f"model.low_rank.{name}: expected a rank from 1 to {most[name]}, the matrix's smaller side, got {rank}"
            )


def check_parameters(model: ModelConfig) -> None:
    """Refuse sizes that are each in range but make a model of more parameters than any machine can hold."""
    weights = parameter_count(replace(model, vocab=model.vocab or 1), padded=True)
    if weights > PARAMETERS:
        sizes = ", ".join(f"{key} {getattr(model, key)}" for key in ("layers", "embed", "mlp", "heads", "vocab"))
        raise UserError(f"model: {sizes} make {weights:.2g} parameters; expected at most {PARAMETERS:.0e}")
