"""Factors of routed experts in PEFT's format: of the module of each expert, or of an array of all experts, which
`target_parameters` names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.interop.adapters.adapter import Pair, StoredPair
from jaxpar.interop.mapping.family import StoredTensor, tensors_of
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.sources.open_source import Model, family_of
from jaxpar.mesh.parameters import ParamSpec

_WRAPPED = ".base_layer"
ARRAYS = {"gate_up_proj": ("layers.mlp.gate", "layers.mlp.up"), "down_proj": ("layers.mlp.down",)}
"""Our weights in each array of transformers, by its name, in the order in which PEFT wraps their module: the
factors of the last array have the module's name, those of others `base_layer` behind it."""
SWAPPED = (0, 19)
"""The first version of PEFT whose factors A have the inputs of an array [experts, outputs, inputs], and not its second
dim, whatever that is."""


@dataclass(frozen=True)
class ExpertArray:
    """An array of a layer's experts with factors."""

    layer: int
    name: str
    """Name with that of its module, which patterns of scales match."""

    @property
    def weights(self) -> tuple[str, ...]:
        """Our weights in it."""
        return ARRAYS[self.name.rpartition(".")[2]]


def expert_modules(modules: Mapping[str, StoredTensor]) -> dict[str, int]:
    """The layers of the modules of all experts, by their names in files and in transformers."""
    layers: dict[str, int] = {}
    for name, tensor in modules.items():
        path, experts, _ = name.partition(".experts.")
        if experts and tensor.layer is not None:
            for one in (path, path.replace(".block_sparse_moe", ".mlp")):
                layers[f"{one}.experts"] = tensor.layer
    return layers


def array_of(module: str, config: Mapping[str, object], layers: Mapping[str, int]) -> ExpertArray | None:
    """The array that the factors of a module are for, by `adapter_config.json`; None if it is not a module of experts.

    Args:
        module: its name.
        config: `adapter_config.json`.
        layers: see `expert_modules`.
    """
    path, depth, targets = module.partition(_WRAPPED)[0], module.count(_WRAPPED), config.get("target_parameters") or ()
    if path not in layers or module != path + depth * _WRAPPED or not isinstance(targets, (list, tuple)):
        return None
    names = [f"{path}.{array}" for array in ARRAYS]
    targeted = [name for name in names if any(f".{name}".endswith(f".{target}") for target in targets)]
    return ExpertArray(layers[path], targeted[-1 - depth]) if depth < len(targeted) else None


def experts_of(array: ExpertArray, specs: Mapping[str, ParamSpec], where: str) -> int:
    """The number of experts in an array, by the specs of its layer. Raises `UserError` where the model lacks it."""
    if not all(weight in specs and specs[weight].routed for weight in array.weights):
        raise UserError(
            f"{where} has factors for {array.name}, which this model lacks; expected an adapter of this model"
        )
    return specs[array.weights[0]].shape[0]


def factors_of_array(
    array: ExpertArray,
    stored: StoredPair,
    specs: Mapping[str, ParamSpec],
    base: Model,
    config: Mapping[str, object],
    where: str,
) -> Iterator[tuple[tuple[str, int], Pair]]:
    """The factors of each weight in an array, [expert, inputs, rank] and [expert, rank, outputs].

    Args:
        array: with factors, which the model has.
        stored: A [rank x experts, inputs], an expert after another, and B [outputs, rank x experts], which take turns.
        specs: of the layer's weights.
        base: the model.
        config: `adapter_config.json`.
        where: names the adapter, for messages.

    Raises:
        UserError: they are for another model, or the file does not say which factor has the inputs.
    """
    experts, inputs, width = specs[array.weights[0]].shape
    outputs, rank = width * len(array.weights), stored.shapes[0][0] // experts
    if not rank or stored.shapes != ((rank * experts, inputs), (outputs, rank * experts)):
        raise UserError(
            f"{where} has factors {stored.shown} for {array.name}; expected [{experts} x rank, {inputs}] and "
            f"[{outputs}, {experts} x rank], as PEFT {'.'.join(map(str, SWAPPED))} and later write them for this model"
        )
    tensors = [one for one in tensors_of(family_of(base), base.model) if one.layer == array.layer]
    laid = next(one.laid for one in tensors if one.weights[0] in array.weights and one.laid.specs[0].matrix)
    if inputs == outputs and laid.form is not Form.TABLE and _version(config) < SWAPPED:
        raise UserError(
            f"{where} has factors for {array.name}, whose matrices have as many inputs as outputs, and does not say "
            f"which factor has the inputs; expected peft_version {'.'.join(map(str, SWAPPED))} or later"
        )
    a, b = stored.read(rank, len(array.weights), where)
    a = a.reshape(experts, rank, inputs).swapaxes(1, 2)
    b = b.reshape(outputs, rank, experts).transpose(2, 1, 0)
    for index, weight in enumerate(array.weights):
        part = slice(index, None, len(array.weights)) if laid.interleaved else slice(index * width, (index + 1) * width)
        yield (weight, array.layer), (a, b[..., part])


def joined(of_experts: Mapping[int, Pair], experts: int) -> Pair:
    """The factors of all experts in two arrays, from those of some by their numbers, padded to one rank."""
    rank = max(len(b) for _, b in of_experts.values())
    (a, b), *_ = of_experts.values()
    firsts, seconds = np.zeros((experts, len(a), rank), np.float32), np.zeros((experts, rank, b.shape[1]), np.float32)
    for expert, (a, b) in of_experts.items():
        firsts[expert, :, : len(b)], seconds[expert, : len(b)] = a, b
    return firsts, seconds


def check_targets(targets: object, where: str) -> None:
    """Raise `UserError` for `target_parameters` that are no arrays of experts."""
    if not isinstance(targets, Sequence) or not all(
        isinstance(one, str) and one.rpartition(".")[2] in ARRAYS for one in targets
    ):
        raise UserError(
            f"{where}: target_parameters is {targets!r:.80}; expected names that end with {' or '.join(ARRAYS)}"
        )


def _version(config: Mapping[str, object]) -> tuple[int, ...]:
    """The version of PEFT that wrote a configuration; (0,) where it does not say so."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})", str(config.get("peft_version")))
    return (0,) if match is None else tuple(map(int, match.groups()))
