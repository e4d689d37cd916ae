"""Numbers of weights, summed over what layers declare."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from jaxpar.config.counting import streams_of
from jaxpar.config.kinds import kind_counts, kind_model
from jaxpar.config.schema import ModelConfig
from jaxpar.layers.declaration.adaptation import Adaptation
from jaxpar.layers.declared import declare_layer
from jaxpar.layers.inputs.input import input_class
from jaxpar.layers.inputs.token_embedding import vocabulary_matrix
from jaxpar.layers.norm import final_parameters


def parameter_count(model: ModelConfig, padded: bool) -> int:
    """Number of weights, those of the input and the head included (a tied head counts once).

    Args:
        model: The shapes, with `vocab` set.
        padded: Also count the rows that pad the vocabulary to `vocab_multiple`; published counts do not.
    """
    head = () if model.tied else (vocabulary_matrix(model, "embed", "vocab"),)
    outside = (*input_class(model).declare(model).values(), *head)
    embed_and_head = sum(prod(spec.shape if padded else spec.unpadded_shape) for spec in outside)
    return embed_and_head + _over_layers(model, layer_parameters) + final_parameters(model)


def layer_parameters(model: ModelConfig) -> int:
    """Weights of one layer of a model whose layers are all alike."""
    return sum(weights.size for weights in declare_layer(model).weights.values())


def layer_matmul_parameters(model: ModelConfig) -> int:
    """Weights that a token is multiplied with in one layer of a model whose layers are all alike: of those that a
    router chooses among, the chosen ones."""
    return sum(part.active_size(spec) for part in declare_layer(model).parts for spec in part.matrices)


def matmul_parameters(model: ModelConfig, vocab: int) -> int:
    """Weights that every token is multiplied with: all layers and the head, `vocab` being the true vocabulary."""
    before_head = model.embed**2 * (model.head_transform + streams_of(model) - 1)
    return _over_layers(model, layer_matmul_parameters) + model.embed * vocab + before_head


def factor_parameters(model: ModelConfig, adaptation: Adaptation) -> int:
    """Weights that are added to all layers, which are all that is trained; 0 if there are none."""
    factors = lambda part: adaptation.part(part).weights.size - part.weights.size
    return _over_layers(model, lambda layer: sum(map(factors, declare_layer(layer).parts)))


def _over_layers(model: ModelConfig, count: Callable[[ModelConfig], int]) -> int:
    """The sum of the numbers of each layer."""
    return sum(layers * count(kind_model(model, kind)) for kind, layers in kind_counts(model).items())
