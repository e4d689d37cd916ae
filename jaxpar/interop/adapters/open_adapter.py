"""Adapters by their folder: low-rank factors in PEFT's format, or of a run with `lora.rank`."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import cut, named, one_of, printable, quoted
from jaxpar.interop.adapters.adapter import Adapter, MergedAdapter, Pair, by_matrix, stack_of
from jaxpar.interop.adapters.expert_factors import (
    array_of,
    check_targets,
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
from jaxpar.interop.sources.tensor_files import TensorFiles
from jaxpar.layers.adapters import adaptable
from jaxpar.layers.declared import declare_layer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""PEFT's prefix of the names of the model's modules."""
LARGEST_RANK = 512
MOST_REPETITIONS = 3
"""Repetitions in a regular expression: matching takes the length of a name to the power of one more, in the worst
case."""
FREE = frozenset((
    "auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version", "revision", "task_type",
    "exclude_modules", "layers_pattern", "layers_to_transform", "target_modules", "target_parameters",
    "alpha_pattern", "lora_alpha", "r", "rank_pattern",
    "corda_config", "eva_config", "loftq_config", "lora_ga_config",
    "ensure_weight_tying", "ephemeral_gpu_offload", "fan_in_fan_out", "lora_dropout", "megatron_config",
    "megatron_core", "qalora_group_size", "runtime_config",
))  # fmt: skip
"""Keys of `adapter_config.json` that say which matrices have factors, how they are scaled or how they were trained."""
PLAIN: dict[str, tuple[object, ...]] = {
    "bias": ("none",), "use_rslora": (False, True, None),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "mica"),
}  # fmt: skip
"""Other keys with the values that change nothing beside the factors. Other initial values, as those of PiSSA, are
subtracted from the base; PEFT's `path_initial_model_for_weight_conversion` writes factors of the base as it was."""
OFF: tuple[object, ...] = (False, None, [], {})
"""The values that change nothing of every other key."""


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
        factors = by_matrix(_file_factors(folder, base, key), f"{key}: {named(folder)}")
    else:
        source = open_source(path, key)
        if not isinstance(source, AdaptedWeights):
            raise UserError(
                f"{key}: {named(folder)} is {source.description}; expected an adapter: a folder with {CONFIG}, or a "
                "run with lora.rank"
            )
        check_base(base, source.factors.facts, f"{key}: {named(folder)}")
        factors = by_matrix(_of_run(source), f"{key}: {named(folder)}")
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


def _of_run(source: AdaptedWeights) -> Iterator[tuple[tuple[str, int], Pair]]:
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
    config, of_experts = _config_of(folder, key), defaultdict[tuple[str, int], dict[int, Pair]](dict)
    specs = [weight_specs(base.model, kind) for kind in layer_kinds(base.model)]
    if not (folder / WEIGHTS).exists():
        raise UserError(f"{key}: {named(folder)} has no {WEIGHTS}; expected it beside {CONFIG}")
    files = _Files(folder)
    modules, where = _modules(base), f"{key}: {named(folder)}"
    of_all_experts = expert_modules(modules)
    modules = {name: one for name, one in modules.items() if not one.laid.specs[0].routed}  # an array is no module
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
        shapes = [list(files.tensors[one].shape) for one in names]
        if any(len(shape) != 2 for shape in shapes) or not shapes[0][0]:
            raise UserError(
                f"{key}: {named(folder)} has factors {shapes[0]} and {shapes[1]} for {module}; expected [rank, inputs] "
                "and [outputs, rank], of a rank of at least 1"
            )
        a, b = (files.read(one, tuple(slice(0, size) for size in files.tensors[one].shape)) for one in names)
        for one in names:
            del left[one]
        a = a.astype(np.float32)
        if array is not None:
            experts = experts_of(array, specs[array.layer], where)
            pair = a, _scale(config, array.name, max(1, len(a) // experts)) * b
            yield from factors_of_array(array, pair, specs[array.layer], base, config, where)
            continue
        tensor = modules[module]
        for weight, pair in _factors(tensor, a, _scale(config, module, len(a)) * b, key, folder):
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


def _factors(
    tensor: StoredTensor, a: np.ndarray, b: np.ndarray, key: str, folder: Path
) -> Iterator[tuple[tuple[str, int], Pair]]:
    """The factors of each matrix in a tensor, from those of its module."""
    assert tensor.layer is not None, "the matrices of layers have factors"
    rank, specs = len(a), tensor.laid.specs
    inputs = specs[0].shape[specs[0].stack : specs[0].stack + specs[0].inputs]
    outputs = [spec.shape[spec.stack + spec.inputs :] for spec in specs]
    of_outputs = replace(
        tensor.laid, form=Form.LINEAR,
        specs=tuple(
            replace(spec, shape=(rank, *shape), axes=("rank", *spec.axes[spec.stack + spec.inputs :]), inputs=1)
            for spec, shape in zip(specs, outputs, strict=True)
        ),
    )  # fmt: skip
    if (a.shape, b.shape) != ((rank, int(np.prod(inputs))), of_outputs.shape):
        raise UserError(
            f"{key}: {named(folder)} has factors {list(a.shape)} and {list(b.shape)} for {tensor.name}; expected "
            f"{[rank, int(np.prod(inputs))]} and {list(of_outputs.shape)}, of an adapter of this model"
        )
    for index, (weight, shape) in enumerate(zip(tensor.weights, outputs, strict=True)):
        region = tuple(slice(0, size) for size in (rank, *shape))
        part = of_outputs.read(index, region, lambda lines: b[lines])
        yield (weight, tensor.layer), (a.T.reshape(*inputs, rank), part.astype(np.float32))


def _config_of(folder: Path, key: str) -> Mapping[str, object]:
    """The contents of `adapter_config.json`. Raises `UserError` for what is not plain factors."""
    file = folder / CONFIG
    try:
        config = parse_json(read_text_file(file, LONGEST_WRITTEN), named(file))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise UserError(f"{key}: {named(file)} cannot be read ({why})") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UserError(f"{key}: {named(file)} is no adapter of LoRA; expected peft_type: LORA")
    for name, value in config.items():
        values = PLAIN.get(name, OFF)
        if name not in FREE and not any(value == one and type(value) is type(one) for one in values):
            expected, name = one_of(map(repr, values)), printable(cut(name, 60))
            raise UserError(f"{key}: {named(file)}: {name} is {quoted(value, 60)}; expected {expected}")
    for name, every in (("lora_alpha", [config.get("lora_alpha")]), ("alpha_pattern", _alphas(config).values())):
        if not all(isinstance(alpha, (int, float)) and math.isfinite(alpha) for alpha in every):
            what = "a number" if name == "lora_alpha" else "numbers by the ends of names"
            raise UserError(f"{key}: {named(file)}: {name} is {quoted(config.get(name), 60)}; expected {what}")
    _check_patterns(_alphas(config), f"{key}: {named(file)}")
    check_targets(config.get("target_parameters") or (), f"{key}: {named(file)}")
    return config


def _alphas(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`alpha_pattern`, by regular expressions of the ends of names of modules."""
    pattern = config.get("alpha_pattern") or {}
    return pattern if isinstance(pattern, dict) else {"": None}


def _check_patterns(patterns: Iterable[str], where: str) -> None:
    for pattern in patterns:
        try:
            _has_end("", pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(
                f"{where}: alpha_pattern has {quoted(pattern, 60)}, which is no regular expression ({error}); expected "
                "one of the ends of names"
            ) from None
        repetitions = re.findall(r"(?<!\()[*+?{]", pattern)  # a question mark behind a parenthesis is none
        if re.search(r"\)[*+{]", pattern) or len(repetitions) > MOST_REPETITIONS:
            raise UserError(
                f"{where}: alpha_pattern has {quoted(pattern, 60)}, and matching what repeats groups, or repeats more "
                f"than {MOST_REPETITIONS} times, may not end; expected a simpler one, or names"
            )


def _has_end(module: str, pattern: str) -> bool:
    """Whether PEFT takes a module's name for one with this end. Raises `re.error` for a wrong pattern."""
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def _scale(config: Mapping[str, Any], module: str, rank: int) -> np.float32:
    """The factor of the product of a module's factors."""
    of_module = [alpha for pattern, alpha in _alphas(config).items() if _has_end(module, pattern)]
    alpha = [*of_module, config["lora_alpha"]][0]
    return np.float32(alpha / (rank**0.5 if config.get("use_rslora") else rank))
