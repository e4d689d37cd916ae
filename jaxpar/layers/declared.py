"""The declaration of a model's layers, composed from those of their parts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from jaxpar.config.counting import streams_of
from jaxpar.config.kinds import kind_counts, kind_model
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.mappings.latent_attention import LatentAttentionConfig
from jaxpar.config.mappings.residual import AltUpConfig, PerLayerEmbeddings
from jaxpar.config.parts import FEATURES, FEED_FORWARDS, MIXERS, feature, implementations
from jaxpar.config.plan import UNTILED, LayerLayout
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.beside.per_layer import NAME as MIXES
from jaxpar.layers.beside.per_layer import PerLayerInput
from jaxpar.layers.block import Block
from jaxpar.layers.declaration.activations import LAYER_INPUT, Activation
from jaxpar.layers.declaration.adaptation import ALL_TRAINED, Adaptation
from jaxpar.layers.declaration.part import (
    NORM,
    RESIDUAL,
    Core,
    Elementwise,
    Layer,
    Matmuls,
    Operation,
    Part,
    Traffic,
    Weights,
)
from jaxpar.layers.feed_forward.base import HIDDEN, FeedForward
from jaxpar.layers.norm import NORMS, LayerScale
from jaxpar.layers.residual.altup import AltUp
from jaxpar.layers.residual.laurel import NAME as LEARNED
from jaxpar.layers.residual.laurel import LearnedResidual

NORM_POSITIONS = {
    "pre": (True, False), "post": (False, True), "sandwich": (True, True), "stream": (True, False),
    "stream_mixer": (True, False), "parallel": (True, False), "parallel_norms": (True, False),
}  # fmt: skip
"""Whether a part has a norm before it, and one after it, by `model.norm_placement`."""
PARALLEL, SHARED = ("parallel", "parallel_norms"), "parallel"
"""The placements in which all parts read the input of the layer, and the one in which they read one norm of it."""

STREAMS = ("streams", "embed")
"""Dims of all residual streams."""
PREDICTED = "altup_predicted"
"""The prediction of all residual streams (`model.altup`)."""
PREDICTING, CORRECTING = Traffic(2, 4), Traffic(2, 3)
"""The prediction reads all streams and writes them; the correction reads and writes them too, with the output of the
blocks beside them."""


def feed_forward_classes(model: ModelConfig) -> tuple[type[FeedForward], ...]:
    """The feed-forwards of a model whose layers are all alike, or that of each of its experts."""
    return implementations(FEED_FORWARDS[model.activation])


def mixer_classes(model: ModelConfig) -> tuple[type, ...]:
    """The blocks of a model whose layers are all alike in which tokens see others."""
    if model.keys_of is not None:
        return (feature("shared_attention"),)
    return implementations(MIXERS[model.mixer if model.latent_attention is None else "latent_attention"])


def _first_classes(model: ModelConfig) -> tuple[type, ...]:
    """The blocks before the feed-forward: mixers, and a learned residual beside them."""
    return (*mixer_classes(model), *(() if model.laurel_rank is None else (LearnedResidual,)))


def blocks_of(
    model: ModelConfig, adaptation: Adaptation = ALL_TRAINED, layout: LayerLayout = UNTILED
) -> tuple[Block, ...]:
    """The blocks of a layer of a model whose layers are all alike.

    Args:
        model: its configuration.
        adaptation: the weights that are trained.
        layout: how it is computed.
    """
    mixers = _first_classes(model)
    parts = [adaptation.part(part) for part in declare_parts(model)]
    blocks: list[Block] = [mixer(model, part) for mixer, part in zip(mixers, parts, strict=False)]
    last = [] if model.per_layer_embeddings is None else [PerLayerInput(model, parts.pop())]
    if model.experts is not None:
        kind = feature("normed_experts" if model.experts.norms else "experts")
        experts = kind(model, *feed_forward_classes(model), parts[-1], layout.experts)
        return (*blocks, experts, *last)
    behind = zip(feed_forward_classes(model), parts[len(mixers) :], strict=True)
    return (*blocks, *(feed_forward(model, part, layout.mlp_tiles) for feed_forward, part in behind), *last)


def supports_experts(activation: str) -> bool:
    """Whether experts can compute the feed-forward of a value of `model.activation`."""
    feed_forwards = implementations(FEED_FORWARDS[activation])
    return len(feed_forwards) == 1 and bool(feed_forwards[0].routed_inputs)


def declare_parts(model: ModelConfig) -> tuple[Part, ...]:
    """The parts of a layer of a model whose layers are all alike: its mixers, its feed-forwards or experts, and what
    adds the inputs of the layer."""
    mixers, feed_forwards = _first_classes(model), feed_forward_classes(model)
    parts = tuple(mixer.declare(model) for mixer in mixers)
    last = () if model.per_layer_embeddings is None else (PerLayerInput.declare(model),)
    if model.experts is not None:
        return (*parts, feature("experts").declare(model, *feed_forwards), *last)
    return (*parts, *(feed_forward.declare(model) for feed_forward in feed_forwards), *last)


def attends(model: ModelConfig) -> bool:
    """Whether layers of a model whose layers are all alike have attention, in some form."""
    return any(isinstance(one, Core) for _, one in declare_layer(model).operations)


@lru_cache(maxsize=1000)
def declare_layer(model: ModelConfig) -> Layer:
    """A layer of a model whose layers are all alike: `kind_model` gives that of a kind.

    A part reads the residual stream, or `<part>_input`, which a norm before it makes. Its last matmul is added to the
    stream (`<part>_residual`, where another part follows). With a norm after it, that matmul makes `<part>_projected`,
    whose norm is added to the stream by what comes next. Parallel parts read the input of the layer, and no sum before
    the last is read.
    """
    norm = NORMS[model.norm].declare(model)
    parts = declare_parts(model)
    norms: dict[str, Weights] = {}
    activations = [Activation(LAYER_INPUT, ("stream",), between=True)]
    operations: list[tuple[Part, Operation]] = []
    if model.altup is not None:
        norms |= {"altup": AltUp.declare(model)} | ({"altup_norm": norm} if norm else {})
        activations.append(Activation(PREDICTED, STREAMS, between=True, cheap=True))
        operations.append((parts[0], Elementwise(PREDICTED, _times(streams_of(model), PREDICTING))))
    parallel, pending = model.norm_placement in PARALLEL, 0
    for part in parts:
        before, after = norms_around(part, model)
        shares = (model.norm_placement == SHARED and part is not parts[0]) or part.name == LEARNED
        norms |= {f"{part.name}_norm": norm} if norm and before and not shares else {}
        norms |= {f"post_{part.name}_norm": norm} if norm and after else {}
        source = f"{parts[0].name}_input" if shares else activations[-1].name
        corrected = model.altup is not None and part.name == MIXES
        if not shares and (before or pending or corrected):
            source = f"{part.name}_input"
            operations.append((part, _between(source, before + pending, pending + corrected)))
            activations.append(Activation(source, ("embed",), between=True, cheap=True))
        *inside, last = part.operations
        assert isinstance(last, Matmuls)
        read = f"{part.name}_projected" if after else f"{part.name}_residual"
        outputs = (read,) if after or not (parallel or part is parts[-1]) else ()
        reads_stream = lambda one: isinstance(one, Matmuls) and one.inward and not one.input
        operations += [(part, replace(one, input=source) if reads_stream(one) else one) for one in inside]
        operations.append((part, replace(last, outputs=outputs, adds=not after)))
        activations += part.activations
        activations += [Activation(name, ("embed",), between=True) for name in outputs]
        pending = (pending if shares else 0) + after
    if pending:
        operations.append((parts[-1], _between("layer_output", pending, pending)))
    if model.altup is not None:
        operations.append((parts[-1], Elementwise("altup_corrected", _times(streams_of(model), CORRECTING))))
    norms |= {"layer_scale": LayerScale.declare()} if model.layer_scale else {}
    return Layer(parts, norms, tuple(activations), tuple(operations))


def _times(streams: int, traffic: Traffic) -> Traffic:
    """The traffic of work on all streams, for each number of one."""
    return Traffic(streams * traffic.forward, streams * traffic.backward)


def norms_around(part: Part, model: ModelConfig) -> tuple[bool, bool]:
    """Whether a part of a layer has a norm before it, and one after it."""
    return NORM_POSITIONS[model.norm_placement] if part.norms is None else part.norms


def _between(output: str, norms: int, adds: int) -> Elementwise:
    """The operations that make a part's input: those left over by the parts before, and the norm before this one."""
    pieces = [NORM] * norms + [RESIDUAL] * adds
    return Elementwise(output, Traffic(*map(sum, zip(*pieces, strict=True))))


def activation_names(model: ModelConfig) -> tuple[str, ...]:
    """Names of the activations of a model's layers, of all kinds, in order."""
    names: list[str] = []
    for kind in kind_counts(model):
        after = 0
        for name in declare_layer(kind_model(model, kind)).names:
            if name not in names:
                names.insert(after, name)
            after = names.index(name) + 1
    return tuple(names)


def known_activations() -> dict[str, Activation]:
    """Every activation that some layer has, by name, over all feed-forwards, experts, mixers and placements of norms.
    A name means the same in all of them.
    """
    return _known(tuple(FEED_FORWARDS), tuple(MIXERS))


@lru_cache(maxsize=8)
def _known(feed_forwards: tuple[str, ...], mixers: tuple[str, ...]) -> dict[str, Activation]:
    routers = ("noisy_top_k", "cosine") if "experts" in FEATURES else ()  # a tree may come without them
    experts = [ExpertsConfig(count=4, shared=1, shared_router=True, router=router) for router in routers]
    options: list[dict[str, Any]] = [
        *({"activation": name} for name in feed_forwards),
        *(
            {"activation": name, "experts": one}
            for name, one in product(feed_forwards, experts)
            if supports_experts(name)
        ),
        *({"mixer": name} for name in mixers if name != "latent_attention"),
        *({"latent_attention": LatentAttentionConfig(kv_rank=1, query_rank=rank)} for rank in (None, 1)),
        {"attention_sinks": True, "attention_gate": True, "altup": AltUpConfig(), "laurel_rank": 1},
        {"per_layer_embeddings": PerLayerEmbeddings(width=1)},
        {"keys_of": "others"},
    ]
    known: dict[str, Activation] = {}
    for placement, option in product(NORM_POSITIONS, options):
        for one in declare_layer(ModelConfig(norm_placement=placement, **option)).activations:  # pyright: ignore
            assert known.setdefault(one.name, one) == one, f"{one.name} is not the same in all layers"
    return known


def hidden_names() -> frozenset[str]:
    """Activations inside feed-forwards, which in tiles exist for one tile at a time."""
    return frozenset(name for name, one in known_activations().items() if one.dims == HIDDEN)
