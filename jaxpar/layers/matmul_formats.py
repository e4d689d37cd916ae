"""Quantised matmuls of a model, the exceptions, and why: what `precision.matmul` and its exceptions come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from jaxpar.config.checks.sizes import known
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.schema import Config, ModelConfig, ParallelConfig
from jaxpar.layers.adapters import adapters_of, freeze
from jaxpar.layers.declaration.part import Matmuls, Part
from jaxpar.layers.declared import declare_layer
from jaxpar.precision.recipe import TILES, QuantisedGroups, group_tensors, recipe_of

NEVER = {
    "head": "its rounding would reach every logit, and it is a small share of the FLOPs",
    "router": "its rounding would change which experts a token uses",
}
"""Products that are not quantised under any recipe, each with the reason."""

ROUTER_GROUPS = ("routers", "router_projection")
"""Groups of matmuls of a router."""


class Exempt(NamedTuple):
    """Products that stay in the compute dtype."""

    what: str
    why: str


def dense_groups(model: ModelConfig) -> Iterator[tuple[Part, Matmuls]]:
    """The groups of matmuls of the layers of `model`, a model of one kind, but those of routed experts and routers."""
    for part in declare_layer(model).parts:
        yield from ((part, group) for group in _dense(part))


def routed_groups(model: ModelConfig) -> Iterator[tuple[Part, Matmuls]]:
    """The groups of matmuls of the routed experts of `model`, a model of one kind."""
    for part in declare_layer(model).parts:
        yield from ((part, group) for group in part.groups if _is_routed(part, group))


def multiplied(part: Part) -> set[str]:
    """The weights of a part that its dense groups of matmuls multiply with: not those of routed experts and routers."""
    return {name for group in _dense(part) for name in part.factors_of(*group.weights)}


def _dense(part: Part) -> Iterator[Matmuls]:
    yield from (group for group in part.groups if group.name not in ROUTER_GROUPS and not _is_routed(part, group))


def _is_routed(part: Part, group: Matmuls) -> bool:
    return any(part.weights[name].routed for name in part.factors_of(*group.weights))


def group_names(model: ModelConfig) -> tuple[str, ...]:
    """Names of the groups of matmuls of a model's layers, of all kinds, that some recipe quantises."""
    each = ((*dense_groups(own), *routed_groups(own)) for own in kind_models(model).values())
    return tuple(dict.fromkeys(group.name for own in each for _, group in own))


def quantised(config: Config, model: ModelConfig) -> dict[str, tuple[str, ...]]:
    """By group of the layers of `model`, a model of one kind, the matrices that are quantised."""
    if config.precision.matmul is None:
        return {}
    found = {
        group.name: tuple(name for name in group.weights if not part.is_factored(name))
        for part, group in (*dense_groups(model), *routed_groups(model))
        if group.name not in config.precision.matmul_options.exclude
    }
    return {name: matrices for name, matrices in found.items() if matrices}


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


def first_columns(config: Config, groups: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Of each group of a kind of layers (`quantised`), where its tensors begin among those of a layer."""
    pairs = _groups_of_kinds(config)
    firsts = accumulate((len(group_tensors(*pair)) for pair in pairs), initial=0)
    of_pair = dict(zip(pairs, firsts, strict=False))
    return {group: of_pair[group, matrices] for group, matrices in groups.items()}


def _groups_of_kinds(config: Config) -> list[tuple[str, tuple[str, ...]]]:
    """Groups with the matrices that are quantised; kinds whose groups have other matrices have columns of their own."""
    each = (quantised(config, own).items() for own in kind_models(config.model).values())
    return list(dict.fromkeys(pair for own in each for pair in own))


def exact_layers(config: Config) -> tuple[int, int]:
    """Layers before the first number, and from the second on, are not quantised."""
    excepted = config.precision.matmul_options
    return excepted.first_layers, config.model.layers - excepted.last_layers


def is_exact(config: Config, layer: int) -> bool:
    """Whether the products of a layer, by its number, are not quantised."""
    first, last = exact_layers(config)
    return config.precision.matmul is None or not first <= layer < last


def are_exact(config: Config, layers: Collection[int]) -> bool | None:
    """Whether the products of all these layers are not quantised; None if those of some are."""
    exact = {is_exact(config, layer) for layer in layers}
    return None if len(exact) > 1 else exact != {False}


def exact_shares(config: Config) -> dict[str, float]:
    """Of the layers of each kind, the share whose products are not quantised."""
    kinds = layer_kinds(config.model)
    exact = Counter(kind for layer, kind in enumerate(kinds) if is_exact(config, layer))
    return {kind: exact[kind] / number for kind, number in Counter(kinds).items()}


def coded_rows(config: Config, slots: Sequence[str]) -> Counter[str]:
    """By kind of layers, the slots of a chunk in whose place no chunk has an exception: their quantised matrices are
    stored as codes, where any are. `slots` are the kinds of a chunk's layers, in order."""
    excepted = config.precision.matmul_options
    return Counter(slots[excepted.first_layers : max(0, len(slots) - excepted.last_layers)])


def why_each_use(recipe: str | None, optimizer_offload: str, weights_offload: str, holds: str | None) -> str | None:
    """Why matrices are quantised with each use under `recipe`, and not once per step; None if they are not.

    Args:
        recipe: `precision.matmul`.
        optimizer_offload: where the optimizer's state is.
        weights_offload: where the weights of layers are.
        holds: the schedule, if it gathers whole chunks that it holds for all microbatches.
    """
    if recipe in TILES and not TILES[recipe].square:
        return f"{recipe} has other codes of a matrix for each of its two sides"
    if optimizer_offload == "file":
        return "a step reads copies of the weights, and their masters are on disk (memory.optimizer_offload)"
    if weights_offload != "none":
        return "layers are fetched from the host with each use (memory.weights_offload)"
    if holds is not None:
        return f"parallel.schedule: {holds} gathers chunks of layers in the compute dtype"
    return None


def quantised_groups(config: Config, kind: str, layers: Collection[int]) -> QuantisedGroups | None:
    """The quantised matmuls of the program of layers of a kind with such numbers; None where there are none."""
    recipe, groups = recipe_of(config.precision), quantised(config, kind_models(config.model)[kind])
    exact = are_exact(config, layers)
    if recipe is None or exact or not groups:
        return None
    between = exact_layers(config) if exact is None else None
    return QuantisedGroups(recipe, groups, first_columns(config, groups), between, kind, len(tensor_names(config)))


def exempt(config: Config) -> list[Exempt]:
    """What stays in the compute dtype under the recipe of `config`, each with the reason."""
    precision, models = config.precision, kind_models(config.model).values()
    excepted, layers = precision.matmul_options, config.model.layers
    found = [Exempt("head", NEVER["head"])]
    if any(own.experts is not None for own in models):
        found.append(Exempt("router", NEVER["router"]))
    named = [name for name in group_names(config.model) if name in excepted.exclude]
    found += [Exempt(name, "precision.matmul_options.exclude") for name in named]
    first, last = exact_layers(config)
    ends = [f"0 to {first - 1}"] if first else []
    ends += [f"{last} to {layers - 1}"] if last < layers else []
    if ends:
        what = "first_layers and last_layers" if len(ends) == 2 else "first_layers" if first else "last_layers"
        found.append(Exempt(f"layers {' and '.join(ends)}", f"precision.matmul_options: {what}"))
    if freeze(adapters := adapters_of(config)):
        found.append(Exempt("the adapters' factors", f"{adapters.rank} columns are too few to gain"))
    if config.model.low_rank:
        found.append(Exempt("factors of model.low_rank", "products of two are not quantised"))
    return found


def rank_sides(parallel: ParallelConfig, part: Part, group: Matmuls, name: str) -> list[int]:
    """Inputs and outputs of a group's matrix on a rank; of routed experts, those of one."""
    spec, tensor = part.weights[name], known(parallel, "tensor")
    shape = spec.shape[spec.stack :]
    sides = [prod(shape[: spec.inputs]), prod(shape[spec.inputs :])]
    heads = spec.shape[spec.axes.index("kv_heads")] if "kv_heads" in spec.axes else tensor
    sides[group.inward] //= 1 if group.between else min(tensor, heads)
    return sides
