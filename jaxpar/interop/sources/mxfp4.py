"""Tensors in MXFP4 (OCP Microscaling Formats 1.0): read as bfloat16, which holds every value that they can have.

A matrix of gpt-oss is two tensors: `NAME_blocks` [expert, output, block, 16] has two codes of 4 bits in each byte, the
first in the lower ones, and `NAME_scales` [expert, output, block] the exponent of each block of 32 inputs, plus 127.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.sources.tensor_files import Stored, TensorFiles

BLOCK = 32
"""Inputs that have one scale."""
BYTES = BLOCK // 2
QUANTIZED, SCALES = "_blocks", "_scales"
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Value of each 4-bit pattern: a sign, two bits of exponent, one of mantissa."""
NAN, BIAS = 255, 127
"""The scale that stands for NaN, and what is subtracted from the others."""


class Mxfp4Files(TensorFiles):
    """The tensors of a folder, those in MXFP4 as `NAME` [expert, input, output] in bfloat16."""

    packed: Mapping[str, np.dtype] = {"U8": np.dtype(np.uint8)}

    def __init__(self, folder: Path, options: Mapping[str, object] = MappingProxyType({})):
        super().__init__(folder, options)
        self._stored = self.tensors
        self.tensors = {name: one for name, one in self._stored.items() if one.dtype != np.uint8}
        left = {name for name, one in self._stored.items() if one.dtype == np.uint8}
        for name in sorted(name for name in left if name.endswith(QUANTIZED)):
            stem = name.removesuffix(QUANTIZED)
            self.tensors[stem] = self._joined(stem)
            left -= {name, stem + SCALES}
        if left:
            name = min(left)
            raise UserError(
                f"{named(self._stored[name].file)}: the tensor {quoted(name, 120)} is of dtype U8, and has no "
                f"{QUANTIZED} beside it; expected pairs of {QUANTIZED} and {SCALES}"
            )

    def read(self, name: str, region: Region) -> np.ndarray:
        if name in self._stored:
            return self.read_stored(self._stored[name].file, name, region)
        stored = self.tensors[name]
        experts, (first, last, _), outputs = region[0], region[1].indices(stored.shape[1]), region[2]
        blocks = slice(first // BLOCK, -(-last // BLOCK))
        asked = (experts, outputs, blocks)
        quantized = self.read_stored(self._stored[name + QUANTIZED].file, name + QUANTIZED, (*asked, slice(0, BYTES)))
        scales = self.read_stored(self._stored[name + SCALES].file, name + SCALES, asked)
        values = dequantized(quantized, scales)[..., first - blocks.start * BLOCK : last - blocks.start * BLOCK]
        return values.swapaxes(1, 2)

    def _joined(self, stem: str) -> Stored:
        quantized, scales = self._stored[stem + QUANTIZED], self._stored.get(stem + SCALES)
        if scales is None or len(quantized.shape) != 4 or quantized.shape != (*scales.shape, BYTES):
            shape = "missing" if scales is None else f"{list(scales.shape)}"
            raise UserError(
                f"{named(quantized.file)}: the tensor {quoted(stem + QUANTIZED, 120)} is {list(quantized.shape)}, and "
                f"{quoted(stem + SCALES, 120)} is {shape}; expected [expert, output, block, {BYTES}] and "
                "[expert, output, block]"
            )
        experts, outputs, blocks, _ = quantized.shape
        return Stored(quantized.file, (experts, blocks * BLOCK, outputs), np.dtype(ml_dtypes.bfloat16))


def dequantized(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Values in bfloat16 [..., block * 32] of codes [..., block, 16] and scales [..., block]."""
    values = VALUES[np.stack([packed & 15, packed >> 4], axis=-1)].reshape(*packed.shape[:-1], BLOCK)
    exponents = scales.astype(np.int32)[..., None]
    with np.errstate(over="ignore"):
        values = np.ldexp(values, exponents - BIAS)
    values = np.where(exponents == NAN, np.float32(np.nan), values)
    return values.astype(ml_dtypes.bfloat16).reshape(*scales.shape[:-1], -1)
