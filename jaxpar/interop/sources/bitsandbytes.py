"""Matrices in 4 bits of bitsandbytes, NF4 (arXiv:2305.14314) and FP4: read as the dtype that they had before.

`NAME` is uint8 [numbers / 2, 1] of the flattened matrix, the first of two codes in the upper bits. Beside it are
`NAME.quant_map`, the value of each code; `NAME.absmax`, the factor of each block of numbers; and
`NAME.quant_state.bitsandbytes__nf4`, JSON in bytes: `shape`, `dtype`, `blocksize`. Quantized factors are codes, too: of
`NAME.nested_quant_map`, with the factors `NAME.nested_absmax` of blocks of `nested_blocksize`, plus `nested_offset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.json_text import parse_json
from jaxpar.config.spelling import join_or, named, quoted
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.sources.tensor_files import DTYPES, Stored, TensorFiles

STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
"""Suffixes of names of the JSON of a matrix."""
_DTYPES = {dtype.name: dtype for dtype in DTYPES.values()}
_BYTES, _FLOATS = ("uint8",), tuple(_DTYPES)


@dataclass(frozen=True)
class _Matrix:
    """The JSON of a matrix."""

    shape: tuple[int, ...]
    dtype: np.dtype
    block: int
    """Numbers that have one factor."""
    nested: int | None
    """Factors that have one; None if they are stored as they are."""
    offset: float

    @property
    def parts(self) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
        """Shapes and dtypes of the tensors of the matrix, by suffix."""
        numbers = prod(self.shape)
        factors = -(-numbers // self.block)
        parts: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
            "": ((-(-numbers // 2), 1), _BYTES), ".quant_map": ((16,), _FLOATS),
            ".absmax": ((factors,), _FLOATS if self.nested is None else _BYTES),
        }  # fmt: skip
        if self.nested is not None:
            nested = (-(-factors // self.nested),)
            parts |= {".nested_quant_map": ((256,), _FLOATS), ".nested_absmax": (nested, _FLOATS)}
        return parts


class BitsAndBytesFiles(TensorFiles):
    """The tensors of a folder, those in 4 bits as [output, input]."""

    packed: Mapping[str, np.dtype] = {"U8": np.dtype(np.uint8)}

    def __init__(self, folder: Path, options: Mapping[str, object]):
        super().__init__(folder, options)
        self._stored, self._matrices, parts = self.tensors, dict[str, _Matrix](), set[str]()
        for name, stored in self._stored.items():
            suffix = next((one for one in STATES if name.endswith(one)), None)
            if suffix is None:
                continue
            stem = name.removesuffix(suffix)
            matrix = self._matrix_of(name, stored)
            self._check(stem, matrix, stored.file)
            self._matrices[stem] = matrix
            parts |= {name, *(stem + part for part in matrix.parts)}
        self.tensors = {name: one for name, one in self._stored.items() if name not in parts}
        for name, one in self.tensors.items():
            if one.dtype == np.uint8:
                raise UserError(
                    f"{named(one.file)}: the tensor {quoted(name, 120)} is of dtype U8, and has no {STATES[0]} beside "
                    "it"
                )
        for name, one in self._matrices.items():
            self.tensors[name] = Stored(self._stored[name].file, one.shape, one.dtype)

    def read(self, name: str, region: Region) -> np.ndarray:
        if name not in self._matrices:
            return super().read(name, region)
        matrix = self._matrices[name]
        rows, width = region[0].indices(matrix.shape[0]), prod(matrix.shape[1:])
        first, last = rows[0] * width, rows[1] * width
        packed = self._part(name, slice(first // 2, -(-last // 2)), slice(0, 1)).reshape(-1)
        indices = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[first % 2 :][: last - first]
        begin, stop = first // matrix.block, -(-last // matrix.block)
        factors = self._factors(name, matrix, begin, stop)[np.arange(first, last) // matrix.block - begin]
        values = (self._part(f"{name}.quant_map", slice(None))[indices] * factors).astype(matrix.dtype)
        return values.reshape(-1, *matrix.shape[1:])[:, *region[1:]]

    def _factors(self, name: str, matrix: _Matrix, first: int, last: int) -> np.ndarray:
        """The factors of blocks, in float32."""
        stored = self._part(f"{name}.absmax", slice(first, last))
        if matrix.nested is None:
            return stored
        begin, stop = first // matrix.nested, -(-last // matrix.nested)
        factors = self._part(f"{name}.nested_absmax", slice(begin, stop))
        each = factors[np.arange(first, last) // matrix.nested - begin]
        return self._part(f"{name}.nested_quant_map", slice(None))[stored] * each + np.float32(matrix.offset)

    def _part(self, name: str, *region: slice) -> np.ndarray:
        return self.read_stored(self._stored[name].file, name, region)

    def _matrix_of(self, name: str, stored: Stored) -> _Matrix:
        text, source = bytes(self._part(name, slice(None))), f"{named(stored.file)}: the tensor {quoted(name, 120)}"
        values = parse_json(text.decode("utf-8", "replace"), source)
        state = values if isinstance(values, dict) else {}
        shape, block, nested = (state.get(key) for key in ("shape", "blocksize", "nested_blocksize"))
        dtype, offset = _DTYPES.get(str(state.get("dtype"))), state.get("nested_offset", 0.0)
        sizes = [*shape, block, 1 if nested is None else nested] if isinstance(shape, list) and shape else [None]
        if not all(type(one) is int and one > 0 for one in sizes) or dtype is None or not isinstance(offset, float):
            raise UserError(f"{source} is {quoted(values, 120)}; expected a shape, dtype and blocksize")
        *dims, numbers, factors = (int(one or 0) for one in sizes)
        return _Matrix(tuple(dims), dtype, numbers, None if nested is None else factors, offset)

    def _check(self, stem: str, matrix: _Matrix, file: Path) -> None:
        """Refuse a matrix of whose tensors one is missing, or of another shape or dtype."""
        for part, (shape, dtypes) in matrix.parts.items():
            stored = self._stored.get(stem + part)
            if stored is None or stored.shape != shape or stored.dtype.name not in dtypes:
                description = "missing" if stored is None else f"{stored.dtype} {list(stored.shape)}"
                raise UserError(
                    f"{named(file)}: the tensor {quoted(stem + part, 120)} is {description}; expected "
                    f"{join_or(dtypes)} {list(shape)}, for a matrix {list(matrix.shape)} in blocks of {matrix.block}"
                )
