"""Quantized matmuls of a model, the exceptions, and why: what `precision.matmul` and its exceptions come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate, pairwise

from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.layers.declaration.part import Matmuls, Part
from jaxpar.layers.declared import declare_layer
from jaxpar.precision.recipe import QuantizedGroups, group_tensors, recipe_of


def dense_groups(model: ModelConfig) -> Iterator[tuple[Part, Matmuls]]:
    """The groups of matmuls of the layers of `model`, a model of one kind, but those of routed experts and routers."""
    for part in declare_layer(model).parts:
        yield from ((part, group) for group in part.dense_groups)


def routed_groups(model: ModelConfig) -> Iterator[tuple[Part, Matmuls]]:
    """The groups of matmuls of the routed experts of `model`, a model of one kind."""
    for part in declare_layer(model).parts:
        yield from ((part, group) for group in part.groups if part.is_routed(group))


def group_names(model: ModelConfig) -> tuple[str, ...]:
    """Names of the groups of matmuls of a model's layers, of all kinds, that some recipe quantizes."""
    each = ((*dense_groups(one), *routed_groups(one)) for one in kind_models(model).values())
    return tuple(dict.fromkeys(group.name for groups in each for _, group in groups))


def quantized_matrices(config: Config, model: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Quantized matrices of the layers of `model`, a model of one kind, by group."""
    if config.precision.matmul is None:
        return {}
    by_name = {
        group.name: tuple(name for name in group.weights if not part.is_factored(name))
        for part, group in (*dense_groups(model), *routed_groups(model))
        if group.name not in config.precision.matmul_options.exclude
    }
    return {name: matrices for name, matrices in by_name.items() if matrices}


def tensor_names(config: Config) -> tuple[str, ...]:
    """The tensors of a layer that have a scale, those of all kinds: the columns of its scales.

    Where several groups have a matrix of one name, as dense layers and experts of another kind do, that of the group
    stands before it: `experts_in.up.gradient`.
    """
    pairs = _groups_of_kinds(config)
    counts = Counter(name for pair in pairs for name in group_tensors(*pair))
    return tuple(
        name if counts[name] == 1 else f"{group}.{name.removeprefix(f'{group}.')}"
        for group, matrices in pairs
        for name in group_tensors(group, matrices)
    )


def tensor_columns(config: Config, groups: Mapping[str, tuple[str, ...]]) -> dict[str, range]:
    """The indices of the tensors of each group of a kind of layers (`quantized`) among `tensor_names`."""
    pairs = _groups_of_kinds(config)
    edges = accumulate((len(group_tensors(*pair)) for pair in pairs), initial=0)
    of_pair = {pair: range(*edge) for pair, edge in zip(pairs, pairwise(edges), strict=True)}
    return {group: of_pair[group, matrices] for group, matrices in groups.items()}


def _groups_of_kinds(config: Config) -> list[tuple[str, tuple[str, ...]]]:
    """Groups with the matrices that are quantized; kinds whose groups have other matrices have columns of their own."""
    each = (quantized_matrices(config, one).items() for one in kind_models(config.model).values())
    return list(dict.fromkeys(pair for pairs in each for pair in pairs))


def exact_layers(config: Config) -> tuple[int, int]:
    """Layers before the first number, and from the second on, are not quantized."""
    excepted = config.precision.matmul_options
    return excepted.first_layers, config.model.layers - excepted.last_layers


def is_exact(config: Config, layer: int) -> bool:
    """Whether the products of a layer, by its number, are not quantized."""
    first, last = exact_layers(config)
    return config.precision.matmul is None or not first <= layer < last


def are_exact(config: Config, layers: Collection[int]) -> bool | None:
    """Whether the products of all these layers are not quantized; None if those of some are."""
    exact = {is_exact(config, layer) for layer in layers}
    return None if len(exact) > 1 else exact != {False}


def exact_shares(config: Config) -> dict[str, float]:
    """The share of the layers of each kind whose products are not quantized."""
    kinds = layer_kinds(config.model)
    exact = Counter(kind for layer, kind in enumerate(kinds) if is_exact(config, layer))
    return {kind: exact[kind] / layers for kind, layers in Counter(kinds).items()}


def quantized_groups(config: Config, kind: str, layers: Collection[int]) -> QuantizedGroups | None:
    """The quantized matmuls of the program of layers of a kind with such numbers; None where there are none."""
    recipe, groups = recipe_of(config.precision), quantized_matrices(config, kind_models(config.model)[kind])
    exact = are_exact(config, layers)
    if recipe is None or exact or not groups:
        return None
    between = exact_layers(config) if exact is None else None
    return QuantizedGroups(recipe, tensor_columns(config, groups), between, kind, len(tensor_names(config)))
