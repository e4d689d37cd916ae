"""Weights to a folder in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.config.strict_json import json_text
from jaxpar.interop.config_json import config_of, differences, family_for, model_of
from jaxpar.interop.conversion.compressed_tensors import (
    SCALE,
    SCALE_BYTES,
    WEIGHT,
    quantization_config,
    quantize,
    quantized_names,
)
from jaxpar.interop.conversion.images import Images, images_of
from jaxpar.interop.conversion.new_folder import copy_beside
from jaxpar.interop.conversion.tokenizer_files import TokenizerFiles, tokenizer_files
from jaxpar.interop.mapping.family import Family, StoredTensor, tensors_of
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.quantization import QUANTIZATION
from jaxpar.interop.mapping.weight_names import weight_specs
from jaxpar.interop.sources.full_matrices import full_matrix_model, read_full_matrix
from jaxpar.interop.sources.hf_folder import CONFIG, HFFolder, read_config
from jaxpar.interop.sources.open_source import Model, origin_of
from jaxpar.interop.sources.tensor_files import DTYPES, INDEX, SINGLE_FILE

GENERATION = "generation_config.json"
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
DTYPE_NAMES = {dtype.name: dtype for dtype in DTYPES.values()}
"""The dtypes that an export can have."""


@dataclass(frozen=True)
class Export:
    """A folder in Hugging Face's format, before it is written."""

    source: Model
    family: Family
    tensors: list[StoredTensor]
    dtypes: dict[str, np.dtype]
    """Dtype of each tensor."""
    config: Mapping[str, object]
    """The contents of `config.json`."""
    beside: Path | None
    """A folder whose `generation_config.json` is copied."""
    tokenizer: TokenizerFiles
    quantized: frozenset[str] = frozenset()
    """Tensors that are written as codes of 8 bits and a scale."""
    images: Images | None = None
    """Parts for images that are written too."""
    _last: dict[tuple[str, int | None], np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @property
    def parameters(self) -> int:
        """The number of exported weights."""
        return sum(prod(tensor.laid.shape) for tensor in self.tensors)

    def values(self, tensor: StoredTensor) -> np.ndarray:
        """A tensor, in its dtype here."""
        return tensor.laid.join(self.weights(tensor)).astype(self.dtypes[tensor.name])

    def written(self, tensor: StoredTensor) -> dict[str, np.ndarray]:
        """Arrays that the file stores for a tensor, by name."""
        if tensor.name not in self.quantized:
            name = tensor.name if self.images is None else self.images.source.name_in_files(tensor.name)
            constants = {other: np.asarray(value, self.dtypes[tensor.name]) for other, value in tensor.constants}
            return {name: self.values(tensor), **constants}
        values, scale = quantize(tensor.laid.join(self.weights(tensor)))
        return {tensor.name: values, _scale_name(tensor): scale}

    def weights(self, tensor: StoredTensor) -> list[np.ndarray]:
        """The weights that a tensor holds."""
        arrays = [self._full_array(weight, tensor.layer) for weight in tensor.weights]
        return arrays if tensor.member is None else [weight[tensor.member] for weight in arrays]

    def _full_array(self, weight: str, layer: int | None) -> np.ndarray:
        """A weight, of a layer or outside them. The last one is kept: its matrices are asked for in turn."""
        if (weight, layer) not in self._last:
            model = full_matrix_model(self.source.model)
            spec = weight_specs(model, layer_kinds(model)[layer or 0])[weight]
            region = tuple(slice(0, size) for size in spec.shape)
            read = read_full_matrix(self.source, weight, None if layer is None else [layer], region)
            self._last.clear()
            self._last[weight, layer] = read if layer is None else read[0]
        return self._last[weight, layer]

    def write(self, folder: Path, shard_bytes: int) -> list[Path]:
        """Write everything into an empty folder; returns the files of the weights."""
        (folder / CONFIG).write_text(_json(self.config), encoding="utf-8")
        self._write_beside(folder)
        return self.write_weights(folder, shard_bytes)

    def shards(self, shard_bytes: int) -> list[list[StoredTensor]]:
        """The tensors of each file: in order, each file as full as it may be."""
        shards: list[list[StoredTensor]] = [[]]
        size = 0
        for tensor in self.tensors:
            written = self._bytes(tensor)
            if shards[-1] and size + written > shard_bytes:
                shards.append([])
                size = 0
            shards[-1].append(tensor)
            size += written
        return shards

    def write_weights(self, folder: Path, shard_bytes: int) -> list[Path]:
        """Write the weights alone; returns their files."""
        shards, files, by_name, carried = self.shards(shard_bytes), [], {}, self._carried()
        for index, shard in enumerate(shards, start=1):
            name = SINGLE_FILE if len(shards) == 1 else f"model-{index:05d}-of-{len(shards):05d}.safetensors"
            try:
                leaves = {leaf: value for one in shard for leaf, value in self.written(one).items()}
                leaves |= carried if index == len(shards) else {}
                save_file(leaves, folder / name, metadata={"format": "pt"})
            except SafetensorError as error:
                raise OSError(None, str(error)) from error
            files.append(folder / name)
            by_name |= dict.fromkeys(leaves, name)
        if len(shards) > 1:
            more = [(one.size, one.nbytes) for one in carried.values()]
            parameters, size = (sum(each) for each in zip((0, 0), *more, strict=True))
            sizes = {
                "total_parameters": self.parameters + parameters,
                "total_size": sum(map(self._bytes, self.tensors)) + size,
            }
            (folder / INDEX).write_text(_json({"metadata": sizes, "weight_map": by_name}), encoding="utf-8")
        return files

    def _carried(self) -> dict[str, np.ndarray]:
        """The tensors of images, which the last file has."""
        return {} if self.images is None else self.images.arrays()

    def _bytes(self, tensor: StoredTensor) -> int:
        if tensor.name in self.quantized:
            return prod(tensor.laid.shape) + SCALE_BYTES
        return (prod(tensor.laid.shape) + len(tensor.constants)) * self.dtypes[tensor.name].itemsize

    def _write_beside(self, folder: Path) -> None:
        """Write the files of the tokenizer, and copy or make `generation_config.json`."""
        self.tokenizer.write(folder)
        if self.images is not None:
            self.images.write_beside(folder)
        if self.beside is not None and (self.beside / GENERATION).exists():
            copy_beside(self.beside / GENERATION, folder / GENERATION)
            return
        if not self.source.model.causal:  # transformers writes none of what generates nothing
            return
        ids = {key: self.config[key] for key in TOKEN_IDS if self.config.get(key) is not None}
        (folder / GENERATION).write_text(_json({"_from_model_config": True, **ids}), encoding="utf-8")


def _scale_name(tensor: StoredTensor) -> str:
    return tensor.name.removesuffix(WEIGHT) + SCALE


def plan_export(
    source: Model, dtype: str | None = None, report: Callable[[str], None] = print, *, compressed: bool = False
) -> Export:
    """The export of a model.

    Args:
        source: the weights.
        dtype: that of all tensors; None takes those that the tensors had where the weights came from, or float32.
        report: takes a sentence about what is written from scratch because its origin cannot be used.
        compressed: whether matrices are written in 8 bits, in the format `compressed-tensors`.

    Raises:
        UserError: no family of Hugging Face's format can hold the model.
    """
    model, origin = full_matrix_model(source.model), origin_of(source, report)
    if origin is not None and not _supports(origin.family, model):
        report(f"The format of {origin.family.name}, in which the weights came, cannot hold what the model is now.")
        origin = None
    family = family_for(model) if origin is None else origin.family
    tensors, length = tensors_of(family, model), _length(source)
    names = {} if origin is None else origin.dtypes
    dtypes = {one.name: DTYPE_NAMES[dtype or names.get(one.name, "float32")] for one in tensors}
    tokenizer = tokenizer_files(source, None if origin is None else origin.folder, report)
    # A family's usual ids of special tokens may lie outside this vocabulary.
    config = config_of(family, model, dict.fromkeys(TOKEN_IDS) | {"eos_token_id": tokenizer.end}, length)
    changed = False
    if origin is not None:
        before = read_config(origin.folder)
        config = {key: value for key, value in before.values.items() if key != QUANTIZATION}
        if changed := bool(differences(model, model_of(before)[1])):
            config = config_of(family, model, before.values, length)
    beside = None if origin is None else origin.folder
    config, quantized = _with_dtype(config, dtypes), frozenset()
    images = None if compressed else images_of(origin, family, report)
    if images is not None:
        config = images.config(config, changed)
    if compressed:
        quantized = quantized_names(source, family, tensors)
        config |= {QUANTIZATION: quantization_config(tensors, quantized)}
    return Export(source, family, tensors, dtypes, config, beside, tokenizer, quantized, images)


def _supports(family: Family, model: ModelConfig) -> bool:
    """Whether a family can still hold what a run made of its model."""
    try:
        tensors_of(family, model)
        config_of(family, model, {}, length=1)
    except UserError:
        return False
    return True


def _length(source: Model) -> int:
    """The number of tokens that a model was trained with, as far as is known."""
    if not isinstance(source, HFFolder):
        return source.config.data.sequence_length
    length = HFConfig("", read_config(source.path).values).get("max_position_embeddings")
    return length if isinstance(length, int) else 0


def _with_dtype(config: Mapping[str, object], dtypes: Mapping[str, np.dtype]) -> dict[str, object]:
    """`config` with the dtype of most weights, under the name that it has there."""
    names = [dtype.name for dtype in dtypes.values()]
    key = "dtype" if "dtype" in config else "torch_dtype"
    return {**config, key: max(set(names), key=names.count)}


def _json(values: Mapping[str, object]) -> str:
    """JSON as transformers writes it."""
    return json_text(values, indent=2, sort_keys=True) + "\n"
