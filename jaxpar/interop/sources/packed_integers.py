"""Matrices of integers with scales for groups of inputs, in the formats GPTQ and AWQ: read as the scales' dtype.

`NAME.weight` [output, input] is `(q - zero) * scale` of three tensors: `NAME.qweight`, whose words of 32 bits have the
integers q of a few bits, the first in the lowest; `NAME.qzeros` [group, output / integers in a word]; and
`NAME.scales` [group, output].

- GPTQ (arXiv:2210.17323) packs the inputs: qweight is [input / integers in a word, output]. `NAME.g_idx` [input] has
  the group of each input. Files store zeros minus 1, those of `gptq_v2` the zeros themselves.
- AWQ (arXiv:2306.00978) packs the outputs: qweight is [input, output / 8]. Integers of 4 bits are in the order 0, 2, 4,
  6, 1, 3, 5, 7, in zeros too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.sources.tensor_files import Stored, TensorFiles

WORD = 32
"""Bits of a word."""
WEIGHT, BIAS = ".weight", ".bias"
WORDS, ZEROS, SCALES, GROUPS = ".qweight", ".qzeros", ".scales", ".g_idx"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output that each integer of a word of AWQ belongs to, among the eight of the word."""


class PackedFiles(TensorFiles, ABC):
    """The tensors of a folder, those of packed integers as `NAME.weight`."""

    packed: Mapping[str, np.dtype] = {"I32": np.dtype(np.int32)}
    order: tuple[int, ...] | None = None
    """The position of each integer in its word; None if they are in order."""

    def __init__(self, folder: Path, options: Mapping[str, object]):
        super().__init__(folder, options)
        bits = options["bits"]
        assert isinstance(bits, int), "the configuration was checked"
        self._bits, self._per_word = bits, WORD // bits
        self._stored = self.tensors
        stems = [name.removesuffix(WORDS) for name in self._stored if name.endswith(WORDS)]
        parts = {stem + suffix for stem in stems for suffix in (WORDS, ZEROS, SCALES, GROUPS)}
        self.tensors = {name: one for name, one in self._stored.items() if name not in parts}
        for name, one in self.tensors.items():
            if one.dtype == np.int32:
                raise UserError(
                    f"{named(one.file)}: the tensor {quoted(name, 120)} is of dtype I32, and has no {WORDS} beside it"
                )
        self.tensors |= {stem + WEIGHT: self._joined(stem) for stem in stems}

    def read(self, name: str, region: Region) -> np.ndarray:
        if name in self._stored:
            return super().read(name, region)
        stem, bounds = name.removesuffix(WEIGHT), zip(region, self.tensors[name].shape, strict=True)
        outputs, inputs = (slice(*part.indices(size)[:2]) for part, size in bounds)
        groups = self._groups(stem, inputs)
        values = self._integers(stem, inputs, outputs).astype(np.float32) - self._zeros(stem, outputs)[groups]
        scales = self._part(stem + SCALES, slice(None), outputs)[groups]
        with np.errstate(over="ignore"):
            return (values * scales.astype(np.float32)).astype(scales.dtype).T

    def is_blank(self, name: str) -> bool:
        stem = name.removesuffix(BIAS)
        return stem != name and stem + WORDS in self._stored and not self._part(name, slice(None)).any()

    def _joined(self, stem: str) -> Stored:
        """The matrix, if its tensors have shapes that agree, and their dtypes."""
        suffixes = (WORDS, ZEROS, SCALES, GROUPS)
        shapes = {suffix: self._stored[stem + suffix].shape for suffix in suffixes if stem + suffix in self._stored}
        words, dtypes = self._stored[stem + WORDS], {suffix: self._stored[stem + suffix].dtype for suffix in shapes}
        if not self._fit(shapes) or any((dtypes[one] != np.int32) != (one == SCALES) for one in shapes):
            parts = ", ".join(
                f"{one[1:]} {f'{list(shapes[one])} {dtypes[one]}' if one in shapes else 'missing'}" for one in suffixes
            )
            raise UserError(
                f"{named(words.file)}: the tensors of {quoted(stem, 120)} do not belong together ({parts}); expected "
                f"integers of {self._bits} bits in int32, and a zero and a scale, a float, for each group and output"
            )
        return Stored(words.file, self._shape(shapes[WORDS]), self._stored[stem + SCALES].dtype)

    def _fit(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether shapes of the tensors of a matrix, by suffix, agree."""
        if any(len(shapes.get(suffix, ())) != 2 for suffix in (WORDS, ZEROS, SCALES)):
            return False
        (outputs, inputs), (groups, scaled) = self._shape(shapes[WORDS]), shapes[SCALES]
        zeros = (groups, -(-outputs // self._per_word))
        return scaled == outputs and shapes[ZEROS] == zeros and self._fit_groups(shapes.get(GROUPS), inputs, groups)

    def _part(self, name: str, *region: slice) -> np.ndarray:
        return self.read_stored(self._stored[name].file, name, region)

    def _unpacked(self, words: np.ndarray, axis: int) -> np.ndarray:
        """The integers of words, along one of two axes."""
        shifts = self._bits * np.argsort(self.order or range(self._per_word)).astype(np.uint32)
        parts = np.moveaxis(words.view(np.uint32), axis, -1)[..., None] >> shifts & np.uint32(2**self._bits - 1)
        return np.moveaxis(parts.reshape(*parts.shape[:-2], -1), -1, axis)

    def _read_integers(self, name: str, asked: slice, axis: int, other: slice) -> np.ndarray:
        """Integers of a tensor: those of `asked` along its packed axis, and of `other` along the other axis."""
        first = asked.start // self._per_word
        words = slice(first, -(-asked.stop // self._per_word))
        integers = self._unpacked(self._part(name, *((words, other) if axis == 0 else (other, words))), axis)
        begin = asked.start - first * self._per_word
        return np.take(integers, np.arange(begin, begin + asked.stop - asked.start), axis)

    def _zeros(self, stem: str, outputs: slice) -> np.ndarray:
        """Reads the zero points, [group, output]."""
        return self._read_integers(stem + ZEROS, outputs, 1, slice(None))

    @abstractmethod
    def _shape(self, words: tuple[int, ...]) -> tuple[int, int]:
        """Outputs and inputs of a matrix by the shape of its words."""

    @abstractmethod
    def _fit_groups(self, each: tuple[int, ...] | None, inputs: int, groups: int) -> bool:
        """Whether the inputs have that many groups; `each` is the shape of the tensor with the group of each input."""

    @abstractmethod
    def _integers(self, stem: str, inputs: slice, outputs: slice) -> np.ndarray:
        """Reads the integers of a matrix, [input, output]."""

    @abstractmethod
    def _groups(self, stem: str, inputs: slice) -> np.ndarray:
        """The group of each input."""


class GptqFiles(PackedFiles):
    """The tensors of a folder in GPTQ's format."""

    def __init__(self, folder: Path, options: Mapping[str, object]):
        super().__init__(folder, options)
        self._less = 0 if "gptq_v2" in (options.get("checkpoint_format"), options.get("format")) else 1
        for name in (name for name in self._stored if name.endswith(WORDS)):
            self._check_groups(name.removesuffix(WORDS))

    def _check_groups(self, stem: str) -> None:
        groups, most = self._part(stem + GROUPS, slice(None)), self._stored[stem + SCALES].shape[0]
        if groups.min(initial=0) < 0 or groups.max(initial=0) >= most:
            file = self._stored[stem + GROUPS].file
            raise UserError(
                f"{named(file)}: the tensor {quoted(stem + GROUPS, 120)} has numbers from {groups.min()} to "
                f"{groups.max()}; expected those of {most} groups, from 0 on"
            )

    def _zeros(self, stem: str, outputs: slice) -> np.ndarray:
        return super()._zeros(stem, outputs) + np.uint32(self._less) & np.uint32(2**self._bits - 1)

    def _shape(self, words: tuple[int, ...]) -> tuple[int, int]:
        return words[1], words[0] * self._per_word

    def _fit_groups(self, each: tuple[int, ...] | None, inputs: int, groups: int) -> bool:
        return each == (inputs,) and groups > 0

    def _integers(self, stem: str, inputs: slice, outputs: slice) -> np.ndarray:
        return self._read_integers(stem + WORDS, inputs, 0, outputs)

    def _groups(self, stem: str, inputs: slice) -> np.ndarray:
        return self._part(stem + GROUPS, inputs)


class AwqFiles(PackedFiles):
    """The tensors of a folder in AWQ's format."""

    order = ORDER

    def _shape(self, words: tuple[int, ...]) -> tuple[int, int]:
        return words[1] * self._per_word, words[0]

    def _fit_groups(self, each: tuple[int, ...] | None, inputs: int, groups: int) -> bool:
        return each is None and 0 < groups <= inputs and inputs % groups == 0

    def _integers(self, stem: str, inputs: slice, outputs: slice) -> np.ndarray:
        return self._read_integers(stem + WORDS, outputs, 1, inputs)

    def _groups(self, stem: str, inputs: slice) -> np.ndarray:
        size = self.tensors[stem + WEIGHT].shape[1] // self._stored[stem + SCALES].shape[0]
        return np.arange(inputs.start, inputs.stop) // size
