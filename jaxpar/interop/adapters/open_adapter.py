"""Adapters by their folder: low-rank factors in PEFT's format, or of a run with `lora.rank`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.adapters.adapter import (
    LARGEST_RANK,
    Adapter,
    MergedAdapter,
    Pair,
    StoredPair,
    group_by_matrix,
    stack_of,
)
from jaxpar.interop.adapters.adapter_config import CONFIG, config_of
from jaxpar.interop.adapters.expert_factors import (
    array_of,
    expert_modules,
    experts_of,
    factors_of_array,
    joined,
)
from jaxpar.interop.mapping.family import StoredTensor, tensors_of
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX, weight_specs
from jaxpar.interop.sources.adapted import AdaptedWeights, check_base
from jaxpar.interop.sources.open_source import Model, check_one_model, family_of, local_model, open_source
from jaxpar.interop.sources.tensor_files import TensorFiles, refuse_pickles
from jaxpar.layers.adapters import adaptable
from jaxpar.layers.declared import declare_layer

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""PEFT's prefix of the names of the model's modules."""


def merged(base: Model, folder: Path | None) -> Model | MergedAdapter:
    """The weights of a model, with those of `--adapter FOLDER` added if there is one. Raises `UserError`."""
    return base if folder is None else MergedAdapter(base, open_adapter(folder, base, "--adapter"))


def open_adapter(path: str | Path, base: Model, key: str) -> Adapter:
    """The factors in a folder in PEFT's format, or of a run with `lora.rank`.

    Args:
        path: of the folder.
        base: the model that they adapt.
        key: what names the folder, for messages.

    Raises:
        UserError: there are none, they are for another model or a mixture, or they do more than factors do.
    """
    check_one_model(base, key)
    folder = local_model(path, key)
    _check_model(base.model, key)
    if (folder / CONFIG).exists():
        factors = group_by_matrix(_file_factors(folder, base, key), f"{key}: {named(folder)}")
    else:
        source = open_source(path, key)
        if not isinstance(source, AdaptedWeights):
            raise UserError(
                f"{key}: {named(folder)} is {source.description}; expected an adapter: a folder with {CONFIG}, or a "
                "run with lora.rank"
            )
        check_base(base, source.factors.facts, f"{key}: {named(folder)}")
        factors = group_by_matrix(_run_factors(source), f"{key}: {named(folder)}")
    for weight, _ in factors:
        if weight not in _adaptable(base.model):
            raise UserError(
                f"{key}: {named(folder)} has factors for {weight.removeprefix(LAYER_PREFIX)}, which takes none here "
                "(a router); expected factors of other matrices, or a model with them merged"
            )
    stack = lambda name: stack_of(base.model, *name)
    used = {name: pair for name, (a, b) in factors.items() if (pair := _without_zeros(a, b, stack(name))) is not None}
    adapter = Adapter(used)
    if adapter.rank > LARGEST_RANK:
        raise UserError(f"{key}: {named(folder)} has rank {adapter.rank}; expected at most {LARGEST_RANK}")
    return adapter


def _check_model(model: ModelConfig, key: str) -> None:
    if model.low_rank or any(one.latent_attention is not None for one in kind_models(model).values()):
        what = "model.low_rank" if model.low_rank else "latent attention"
        raise UserError(f"{key}: a model with {what} takes no adapters; expected one without")


def adaptable_of(base: Model, key: str) -> tuple[str, ...]:
    """Names of the matrices that adapters of a model may have factors for. Raises `UserError` where it takes none."""
    check_one_model(base, key)
    _check_model(base.model, key)
    return tuple(sorted({weight.rpartition(".")[2] for weight in _adaptable(base.model)}))


def _adaptable(model: ModelConfig) -> set[str]:
    """Names of the matrices of layers that may have factors beside other adapters."""
    parts = [part for one in kind_models(model).values() for part in declare_layer(one).parts]
    return {f"{LAYER_PREFIX}{part.name}.{name}" for part in parts for name in adaptable(part)}


def _without_zeros(a: np.ndarray, b: np.ndarray, stack: int) -> Pair | None:
    """The factors without the ranks that add nothing; None where all do."""
    used = np.moveaxis(b, stack, 0).reshape(a.shape[-1], -1).any(axis=1)
    return (a[..., used], np.compress(used, b, axis=stack)) if used.any() else None


def _run_factors(source: AdaptedWeights) -> Iterator[tuple[tuple[str, int], Pair]]:
    """The factors of a run."""
    for layer, kind in enumerate(layer_kinds(source.model)):
        for weight, spec in weight_specs(source.model, kind).items():
            if source.is_target(weight):
                region = tuple(slice(0, size) for size in spec.shape)
                end = spec.stack + spec.inputs
                parts = region[: spec.stack], region[spec.stack : end], region[end:]
                (a,), (b,) = source.read_factors(weight, [layer], parts)
                yield (weight, layer), (a.astype(np.float32), np.float32(source.scale) * b)


class _Files(TensorFiles):
    """The tensors of an adapter."""

    def __init__(self, folder: Path):
        self.folder, self._open = folder, {}
        self.tensors = dict(self._tensors_of(folder / WEIGHTS, None))


def _file_factors(folder: Path, base: Model, key: str) -> Iterator[tuple[tuple[str, int], Pair]]:
    """The factors of a folder in PEFT's format."""
    (config, scales), of_experts = config_of(folder, key), defaultdict[tuple[str, int], dict[int, Pair]](dict)
    specs = [weight_specs(base.model, kind) for kind in layer_kinds(base.model)]
    if not (folder / WEIGHTS).exists():
        refuse_pickles(folder, WEIGHTS)
        raise UserError(f"{key}: {named(folder)} has no {WEIGHTS}; expected it beside {CONFIG}")
    files = _Files(folder)
    modules, where = _modules(base), f"{key}: {named(folder)}"
    of_all_experts = expert_modules(modules)
    modules = {name: one for name, one in modules.items() if not one.laid.specs[0].routed}  # an array is not a module
    left = dict.fromkeys(files.tensors)
    while left:
        name = next(iter(left))
        module = name.removeprefix(PREFIX).rpartition(".lora_")[0]
        names = [f"{PREFIX}{module}.lora_{which}.weight" for which in "AB"]
        array = array_of(module, config, of_all_experts)
        there = module in modules or array is not None
        if not there or name not in names or not all(one in files.tensors for one in names):
            raise UserError(
                f"{where} has the tensor {quoted(name, 120)}, and {named(base.path)} has no matrix for "
                "it; expected an adapter of this model, with two factors of each matrix"
            )
        shapes = [files.tensors[one].shape for one in names]
        if any(len(shape) != 2 for shape in shapes) or not shapes[0][0]:
            raise UserError(
                f"{where} has factors {[*shapes[0]]} and {[*shapes[1]]} for {module}; expected [rank, inputs] and "
                "[outputs, rank], of a rank of at least 1"
            )
        for one in names:
            del left[one]
        if array is not None:
            experts = experts_of(array, specs[array.layer], where)
            scale = scales.factor(array.name, max(1, shapes[0][0] // experts))
            stored = StoredPair(files, names, scale)
            yield from factors_of_array(array, stored, specs[array.layer], base, config, where)
            continue
        tensor = modules[module]
        for weight, pair in _factors(tensor, StoredPair(files, names, scales.factor(module, shapes[0][0])), where):
            if tensor.member is None:
                yield weight, pair
            else:
                of_experts[weight][tensor.member] = pair
    for (weight, layer), pairs in of_experts.items():
        yield (weight, layer), joined(pairs, specs[layer][weight].shape[0])


def _modules(base: Model) -> dict[str, StoredTensor]:
    """The tensors of matrices of layers, by the names of their modules."""
    tensors = [
        one for one in tensors_of(family_of(base), base.model) if one.layer is not None and one.laid.specs[0].matrix
    ]
    return {name.removesuffix(".weight"): one for one in tensors for name in (one.name, one.also) if name}


def _factors(tensor: StoredTensor, stored: StoredPair, where: str) -> Iterator[tuple[tuple[str, int], Pair]]:
    """The factors of each matrix in a tensor, from those of its module."""
    assert tensor.layer is not None, "the matrices of layers have factors"
    rank, specs = stored.shapes[0][0], tensor.laid.specs
    inputs = specs[0].shape[specs[0].stack : specs[0].stack + specs[0].inputs]
    outputs = [spec.shape[spec.stack + spec.inputs :] for spec in specs]
    of_outputs = replace(
        tensor.laid, form=Form.LINEAR,
        specs=tuple(
            replace(spec, shape=(rank, *shape), axes=("rank", *spec.axes[spec.stack + spec.inputs :]), inputs=1)
            for spec, shape in zip(specs, outputs, strict=True)
        ),
    )  # fmt: skip
    wanted = (rank, int(np.prod(inputs))), of_outputs.shape
    if stored.shapes != wanted:
        raise UserError(
            f"{where} has factors {stored.shown} for {tensor.name}; expected {[*wanted[0]]} and {[*wanted[1]]}, of an "
            "adapter of this model"
        )
    a, b = stored.read(rank, len(tensor.weights), where)
    for index, (weight, shape) in enumerate(zip(tensor.weights, outputs, strict=True)):
        region = tuple(slice(0, size) for size in (rank, *shape))
        part = of_outputs.read(index, region, lambda lines: b[lines])
        yield (weight, tensor.layer), (a.T.reshape(*inputs, rank), part.astype(np.float32))
