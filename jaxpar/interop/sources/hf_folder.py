"""A folder in Hugging Face's format as a source of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.reading.text_file import LONGEST_WRITTEN, read_text_file
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.config_json import model_of
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.family import Family, StoredTensor, tensors_of
from jaxpar.interop.mapping.keys import HFConfig
from jaxpar.interop.mapping.multimodal import is_multimodal, names_in_files, renamed, text_part
from jaxpar.interop.mapping.quantization import AWQ, COMPRESSED, FLOAT8, GPTQ, NF4, quantization_of
from jaxpar.interop.sources.bitsandbytes import BitsAndBytesFiles
from jaxpar.interop.sources.compressed_tensors import CompressedFiles
from jaxpar.interop.sources.float8_blocks import Float8Files
from jaxpar.interop.sources.mxfp4 import Mxfp4Files
from jaxpar.interop.sources.packed_integers import AwqFiles, GptqFiles
from jaxpar.interop.sources.source import Origin
from jaxpar.interop.sources.tensor_files import RenamedFiles, Stored, TensorFiles, TensorWeights
from jaxpar.pages.units import plural

CONFIG = "config.json"
MOST_MISSING = 10_000
"""Missing tensors that are counted."""
COMPARED = 2**24
"""Numbers of the head and of the embedding that are compared at a time."""
MOST_FURTHER = 100
"""Layers for further tokens that are expected at most."""
_FILES: dict[str, type[TensorFiles]] = {
    FLOAT8: Float8Files, "mxfp4": Mxfp4Files, COMPRESSED: CompressedFiles, NF4: BitsAndBytesFiles, GPTQ: GptqFiles,
    AWQ: AwqFiles,
}  # fmt: skip
"""Readers by format of quantized tensors."""


def read_config(folder: Path) -> HFConfig:
    """The `config.json` of a folder; of a model that takes images too, that of its text part.

    Raises:
        UserError: there is none, or it is not a mapping in JSON.
    """
    return text_part(read_full_config(folder), {one.model_type: one.architecture for one in FAMILIES.values()})


def read_full_config(folder: Path) -> HFConfig:
    """The `config.json` of a folder, as it is.

    Raises:
        UserError: there is none, or it is not a mapping in JSON.
    """
    file = folder / CONFIG
    try:
        values = parse_json(read_text_file(file, LONGEST_WRITTEN), named(file))
    except FileNotFoundError:
        raise UserError(f"{named(folder)}: it has no {CONFIG}; expected a folder in Hugging Face's format") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{named(file)}: cannot be read ({getattr(error, 'strerror', 'it is not UTF-8')})") from None
    if not isinstance(values, dict):
        raise UserError(f"{named(file)}: expected a mapping of keys")
    return HFConfig(named(file), values)


def _further_layers(hf_config: HFConfig, family: Family) -> int:
    """The number of multi-token prediction layers after those of the model, by `config.json`."""
    key = family.further_layers
    if key is None:
        return 0
    count = hf_config.get(key, 0)
    if type(count) is not int or not 0 <= count <= MOST_FURTHER:
        raise hf_config.refusal(key, count, f"a whole number from 0 to {MOST_FURTHER}")
    return count


class HFFolder(TensorWeights):
    """The weights of a folder; everything about it is checked before any is read.

    Raises:
        UserError: a key of `config.json` is not supported, or a tensor is missing, left over, or of another shape.
    """

    def __init__(self, folder: Path):
        self.path = folder
        hf_config = read_config(folder)
        self.family, self.model = model_of(hf_config)
        self.further = _further_layers(hf_config, self.family)
        """Layers of the folder that predict further tokens, which are not read."""
        self.omitted = 0
        """Tensors that are not read, as transformers does not read them."""
        method, options = quantization_of(hf_config, self.family) or (None, {})
        self._files = (TensorFiles if method is None else _FILES[method])(folder, options)
        self.left_out: list[str] = []
        """Names of tensors of images, which are not read."""
        if is_multimodal(read_full_config(folder)):
            stored = self._files.tensors
            names = names_in_files(folder, stored, self.family.prefix, self.family.head)
            self.left_out = sorted(stored.keys() - names.values())
            self._files = RenamedFiles(self._files, names)
        self.untied = self.model.tied and self._head_differs()
        """Whether the head differs from the embedding, though `config.json` ties them: then transformers does not."""
        if self.untied:
            self.model = replace(self.model, tied=False)
        # A config.json may promise any number of them: with more than the files have, one is missing.
        self._most = len(self._files.tensors) + MOST_MISSING
        self.tensors = tensors_of(self.family, self.model, self._most)
        self._names = self._checked()
        super().__init__(self.model, self.tensors, self._files, self._names)

    @property
    def location(self) -> Path:
        return self.path.absolute()

    @property
    def digest(self) -> str:
        return self._files.digest()

    @property
    def description(self) -> str:
        text = f"{self.family.name} in Hugging Face's format, {plural(len(self.tensors), 'tensor')}"
        return "; ".join([text, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """Deviations from `config.json`, and omitted parts, as sentences."""
        remarks = []
        if self.untied:
            remarks.append(
                f"{self.family.head} differs from the embedding, so the two are not tied, though {CONFIG} ties them"
            )
        if self.further:
            last = self.model.layers + self.further - 1
            which = f"layer {last}" if self.further == 1 else f"layers {self.model.layers} to {last}"
            remarks.append(f"without {which}, for the prediction of further tokens")
        if self.left_out:
            parts = (name.split(".")[: 1 + name.startswith("model.")] for name in self.left_out)
            beginnings = dict.fromkeys(".".join(part) for part in parts)
            remarks.append(f"without {plural(len(self.left_out), 'tensor')} of images, {', '.join(beginnings)}")
        if self.omitted:
            remarks.append(f"without {plural(self.omitted, 'tensor')} {'*, '.join(self.family.omitted)}*")
        return remarks

    @property
    def lineage(self) -> tuple[str, ...]:
        return (str(self.path),)

    @property
    def origin(self) -> Origin:
        return Origin(self.path, self.family, {one.name: self.stored(one).dtype.name for one in self.tensors})

    def stored(self, tensor: StoredTensor) -> Stored:
        """File, dtype and shape of a tensor."""
        return self._files.tensors[self._names[tensor.name]]

    def tensor(self, tensor: StoredTensor) -> np.ndarray:
        """The full tensor, in its dtype."""
        return self._files.read(self._names[tensor.name], tuple(slice(0, size) for size in tensor.laid.shape))

    def left_out_tensor(self, name: str) -> np.ndarray:
        """One of `left_out`, in its dtype."""
        assert isinstance(self._files, RenamedFiles), "only a folder with images leaves tensors out"
        return self._files.full_tensor(name)

    def name_in_files(self, name: str) -> str:
        """The name in the files of a tensor of the family's table."""
        if not isinstance(self._files, RenamedFiles):
            return name
        return renamed(name, self._files.names, self.family.prefix)

    def _head_differs(self) -> bool:
        """Whether the files have a head beside the embedding, with other values."""
        stored, family = self._files.tensors, self.family
        embedding = next(line.name for line in family.tensors if line.weights == "embedding.tokens")
        if embedding not in stored:
            embedding = embedding.removeprefix(family.prefix)
        if family.head not in stored or embedding not in stored:
            return False
        head, table = stored[family.head], stored[embedding]
        if head.shape != table.shape or len(head.shape) != 2:
            return True
        (rows, width), read = head.shape, self._files.read
        step = max(1, COMPARED // max(1, width))
        regions = ((slice(row, min(row + step, rows)), slice(0, width)) for row in range(0, rows, step))
        same = lambda part: np.array_equal(read(family.head, part), read(embedding, part), equal_nan=True)
        return not all(map(same, regions))

    def _constants(self) -> list[str]:
        """Names of tensors of one number that is the same in all models of the family.

        Raises:
            UserError: one has another number.
        """
        constants = [pair for tensor in self.tensors for pair in tensor.constants if pair[0] in self._files.tensors]
        for name, value in constants:
            stored = self._files.tensors[name]
            if stored.shape or self._files.read(name, ()) != np.asarray(value, stored.dtype):
                raise UserError(
                    f"{named(stored.file)}: the tensor {name} is not {value}, as in all models of this family"
                )
        return [name for name, _ in constants]

    def _checked(self) -> dict[str, str]:
        """The name in the files of each tensor of the table."""
        stored, family = self._files.tensors, self.family
        bare = not any(name.startswith(family.prefix) for name in stored)
        names = {one.name: one.name.removeprefix(family.prefix) if bare else one.name for one in self.tensors}
        names |= {one.name: one.also for one in self.tensors if names[one.name] not in stored and one.also in stored}
        for tensor in self.tensors:
            tensor_file = stored.get(names[tensor.name])
            if tensor_file is None:
                raise self._refusal("missing", [one for one in names.values() if one not in stored])
            if tensor_file.shape != tensor.laid.shape:
                raise UserError(
                    f"{named(tensor_file.file)}: the tensor {names[tensor.name]} is {list(tensor_file.shape)}; "
                    f"expected {list(tensor.laid.shape)}, by {CONFIG}"
                )
        unread = {family.head} if self.model.tied else set()
        known = {*names.values(), *unread, *self._constants()}
        more = tuple(f"{family.prefix}layers.{self.model.layers + index}." for index in range(self.further))
        left = [name for name in stored if name not in known and not name.endswith(family.buffers)]
        self.omitted = sum(name.startswith(family.omitted) for name in left)
        left = [
            name for name in left if not name.startswith((*more, *family.omitted)) and not self._files.is_blank(name)
        ]
        # transformers writes their number without the layers, if it had left them out itself.
        self.further *= any(name.startswith(more) for name in stored) if more else 0
        if left:
            raise self._refusal("not one of this model", left)
        return names

    def _refusal(self, what: str, names: Sequence[object]) -> UserError:
        least = "at least " if len(self.tensors) == self._most else ""
        more = f" (and {least}{len(names) - 1} more)" if len(names) > 1 else ""
        return UserError(
            f"{named(self.path)}: the tensor {quoted(names[0], 120)} is {what}, by {CONFIG} and the table of "
            f"{self.family.name}{more}"
        )
