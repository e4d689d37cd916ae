"""Matrices in float8 with a scale for each block of 128 x 128 (DeepSeek-V3, arXiv:2412.19437): read as bfloat16.

`NAME` is float8_e4m3fn [outputs, inputs], and `NAME_scale_inv` float32 has the factor of each block; blocks at the ends
may be smaller. The product is rounded to float32 and then to bfloat16, as in the code published with the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.sources.tensor_files import TensorFiles

BLOCK = 128
SCALES = "_scale_inv"
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
LENGTH_BYTES = 8
"""Bytes at the beginning of a safetensors file that give the length of its header, which is JSON."""


class Float8Files(TensorFiles):
    """The tensors of a folder, those in blocks of float8 as bfloat16."""

    packed: Mapping[str, np.dtype] = {"F8_E4M3": FLOAT8}
    scales = SCALES
    """Suffix of the name of a matrix's scales."""
    unread: tuple[str, ...] = ()
    """Ends of names of tensors that are not read."""

    def __init__(self, folder: Path, options: Mapping[str, object] = MappingProxyType({})):
        super().__init__(folder, options)
        self._maps: dict[str, np.ndarray] = {}
        self._headers: dict[Path, tuple[int, Mapping[str, dict]]] = {}
        self._stored = self.tensors
        quantized = {name for name, one in self._stored.items() if one.dtype == FLOAT8}
        scales = {name + self.scales for name in quantized}
        left = {name: one for name, one in self._stored.items() if name not in quantized | scales}
        self.tensors = {name: one for name, one in left.items() if not name.endswith(self.unread)}
        for name in sorted(quantized):
            self.check(name)
            self.tensors[name] = replace(self._stored[name], dtype=np.dtype(ml_dtypes.bfloat16))

    def read(self, name: str, region: Region) -> np.ndarray:
        stored = self._stored[name]
        if stored.dtype != FLOAT8:
            return super().read(name, region)
        quantized = np.asarray(self._map(name)[region])
        return (quantized.astype(np.float32) * self.factors(name, region)).astype(ml_dtypes.bfloat16)

    def factors(self, name: str, region: Region) -> np.ndarray:
        """The scale of each number of a part of a matrix."""
        bounds = [part.indices(size)[:2] for part, size in zip(region, self._stored[name].shape, strict=True)]
        blocks = tuple(slice(first // BLOCK, -(-last // BLOCK)) for first, last in bounds)
        file = self._stored[name + self.scales].file
        scales = self.read_stored(file, name + self.scales, blocks)
        for axis, (first, last) in enumerate(bounds):
            scales = np.take(scales, np.arange(first, last) // BLOCK - blocks[axis].start, axis=axis)
        return scales

    def _map(self, name: str) -> np.ndarray:
        """The codes in the file, which the readers of safetensors for NumPy cannot read by parts."""
        if name not in self._maps:
            stored = self._stored[name]
            begin, header = self._header(stored.file)
            first = begin + header[name]["data_offsets"][0]
            values = np.memmap(stored.file, np.uint8, mode="r", offset=first, shape=stored.shape)
            self._maps[name] = values.view(FLOAT8)
        return self._maps[name]

    def _header(self, file: Path) -> tuple[int, Mapping[str, dict]]:
        """The offset of a file's values, and its header, which was checked when the file was opened."""
        if file not in self._headers:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
                self._headers[file] = LENGTH_BYTES + length, json.loads(opened.read(length))
        return self._headers[file]

    def check(self, name: str) -> None:
        """Refuse a matrix whose scales are missing or of another shape."""
        values, scales = self._stored[name], self._stored.get(name + SCALES)
        expected = tuple(-(-size // BLOCK) for size in values.shape)
        if scales is None or len(values.shape) != 2 or scales.shape != expected or scales.dtype != np.float32:
            description = "missing" if scales is None else f"{scales.dtype.name} {list(scales.shape)}"
            raise UserError(
                f"{named(values.file)}: the tensor {quoted(name, 120)} is float8 {list(values.shape)}, and "
                f"{quoted(name + SCALES, 120)} is {description}; expected [outputs, inputs], and float32 "
                f"{list(expected)}, a scale for each block of {BLOCK} x {BLOCK}"
            )
