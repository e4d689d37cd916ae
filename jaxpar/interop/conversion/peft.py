"""Low-rank factors to a folder in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.config.strict_json import json_text
from jaxpar.interop.adapters.adapter_config import CONFIG
from jaxpar.interop.adapters.open_adapter import PREFIX, WEIGHTS
from jaxpar.interop.config_json import family_for
from jaxpar.interop.mapping.family import StoredTensor, tensors_of
from jaxpar.interop.mapping.form import Form
from jaxpar.interop.sources.adapted import AdaptedWeights
from jaxpar.interop.sources.hf_folder import HFFolder
from jaxpar.interop.sources.open_source import Model, origin_of


@dataclass(frozen=True)
class Adapter:
    """A folder in PEFT's format, before it is written."""

    source: AdaptedWeights
    tensors: list[StoredTensor]
    """The model's tensors, one for each module with factors."""
    names: list[str]
    """Names of these modules, each as the common suffix of the names of its kind."""
    dtype: np.dtype

    def write(self, folder: Path) -> None:
        """Write both files into an empty folder."""
        (folder / CONFIG).write_text(json_text(self.config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        values = {name: value for tensor in self.tensors for name, value in self.factors(tensor)}
        save_file(values, folder / WEIGHTS, metadata={"format": "pt"})

    @property
    def config(self) -> dict[str, object]:
        """The contents of `adapter_config.json`."""
        rank, alpha = self.source.rank, self.source.config.lora.alpha
        # A tensor that holds several matrices has the factors of each: their ranks add up, and the scale stays.
        joined = {_name_of(one, self.names): self._targets(one) for one in self.tensors if len(one.weights) > 1}
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(self.source.base.location),
            "r": rank,
            "lora_alpha": alpha,
            "target_modules": self.names,
            "rank_pattern": {name: rank * len(targets) for name, targets in joined.items() if len(targets) > 1},
            "alpha_pattern": {name: alpha * len(targets) for name, targets in joined.items() if len(targets) > 1},
            "fan_in_fan_out": self.tensors[0].laid.form is Form.TABLE,
            "bias": "none",
            "lora_dropout": 0.0,
            "init_lora_weights": True,
            "inference_mode": True,
            "use_rslora": False,
            "use_dora": False,
        }

    def factors(self, tensor: StoredTensor) -> Iterator[tuple[str, np.ndarray]]:
        """lora_A [rank, inputs] and lora_B [outputs, rank] of the module that a tensor of the model belongs to."""
        targets, rank = self._targets(tensor), self.source.rank
        inputs = prod(tensor.laid.specs[0].shape[: tensor.laid.specs[0].inputs])
        joined_a = np.zeros((rank * len(targets), inputs), np.float32)
        outputs = [(rank * len(targets), *spec.shape[spec.inputs :]) for spec in tensor.laid.specs]
        joined_b = [np.zeros(shape, np.float32) for shape in outputs]
        for index, (weight, spec) in enumerate(zip(tensor.weights, tensor.laid.specs, strict=True)):
            if weight not in targets:
                continue
            region = tuple(slice(0, size) for size in spec.shape)
            assert tensor.layer is not None, "the matrices of layers have factors"
            numbers = () if tensor.member is None else (slice(tensor.member, tensor.member + 1),)
            parts = numbers, region[: spec.inputs], region[spec.inputs :]
            (a,), (b,) = self.source.read_factors(weight, [tensor.layer], parts)
            rows = slice(rank * targets.index(weight), rank * (targets.index(weight) + 1))
            joined_a[rows] = a.reshape(inputs, rank).T
            joined_b[index][rows] = b.reshape(rank, *spec.shape[spec.inputs :])
        # B has the outputs of the tensor in its order, whatever that is.
        specs = [
            replace(spec, shape=shape, axes=("rank", *spec.axes[spec.inputs :]), inputs=1)
            for spec, shape in zip(tensor.laid.specs, outputs, strict=True)
        ]
        of_outputs = replace(tensor.laid, form=Form.LINEAR, specs=tuple(specs))
        name = PREFIX + _module(tensor)
        yield f"{name}.lora_A.weight", joined_a.astype(self.dtype)
        yield f"{name}.lora_B.weight", of_outputs.join(joined_b).astype(self.dtype)

    def _targets(self, tensor: StoredTensor) -> list[str]:
        """The weights with factors in a tensor."""
        return _targets(self.source, tensor)


def plan_adapter(source: Model, dtype: np.dtype, report: Callable[[str], None]) -> Adapter:
    """The export of the factors of a run.

    Args:
        source: the run.
        dtype: of the factors.
        report: takes a sentence about a base model that PEFT cannot load.

    Raises:
        UserError: there are no factors, or no family of Hugging Face's format can hold the model.
    """
    if not isinstance(source, AdaptedWeights):
        raise UserError(
            f"--adapter: {named(source.path)} has no low-rank factors but {source.description}; expected a run with "
            "lora.rank"
        )
    origin = origin_of(source, report)
    family = family_for(source.model) if origin is None else origin.family
    every = tensors_of(family, source.model)
    tensors = [one for one in every if _targets(source, one)]
    for one in tensors:
        if one.laid.specs[0].stack:
            raise UserError(
                f"--adapter: {family.name} has stacked matrices in one tensor, as {one.name}, and an "
                "adapter has modules of one matrix; expected factors of other matrices (lora.targets), or the export "
                "without --adapter, which merges them"
            )
    if not isinstance(source.base, HFFolder):
        report(
            f"The factors are for {named(source.base.location)}, which PEFT cannot load: export it too, and name that "
            f"folder in base_model_name_or_path of {CONFIG}."
        )
    return Adapter(source, tensors, _module_names(tensors, every), dtype)


def _targets(source: AdaptedWeights, tensor: StoredTensor) -> list[str]:
    return [weight for weight in tensor.weights if source.is_target(weight)]


def _module(tensor: StoredTensor) -> str:
    """The name of the module with a tensor."""
    return tensor.name.removesuffix(".weight")


def _module_names(tensors: list[StoredTensor], every: list[StoredTensor]) -> list[str]:
    """The ends of the names of the modules of `tensors`: one part, or two where that is the end of others too."""
    chosen = set(map(_module, tensors))
    names: list[str] = []
    for module in map(_module, tensors):
        last = module.rpartition(".")[2]
        alone = all(other in chosen for other in map(_module, every) if other.endswith(f".{last}"))
        name = last if alone else ".".join(module.split(".")[-2:])
        names += [] if name in names else [name]
    return names


def _name_of(tensor: StoredTensor, names: list[str]) -> str:
    return next(name for name in names if _module(tensor).endswith(f".{name}"))
