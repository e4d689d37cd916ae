"""The arrays of a batch: declared as fields, and the one place that shapes, splits, checks and places them.

The decoder, the objective and the blocks of layers each declare the fields that they read; a batch has their union.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from jaxpar.config.errors import UserError
from jaxpar.mesh.axes import DATA_AXES

SEED = "seed"
"""The name of the seed of draws in a microbatch."""

CARRIED = "carried"
"""The name of the arrays that carried state gives to the layers of every microbatch."""


@dataclass(frozen=True)
class Field:
    """An array that a batch is made of: [row, token, *dims], [row, *dims] per row, or a scalar per step."""

    name: str
    dtype: str = "int32"
    per: Literal["token", "row", "step"] = "token"
    """A field per step is what a training step adds to each microbatch; no loader makes it."""
    dims: tuple[int, ...] = ()
    wraps: bool = False
    """Whether numbers of 2^31 and more wrap around on devices."""
    limits: tuple[int, int] | None = None
    """The least and the largest number."""
    optional: bool = False
    """Whether a batch may lack it. Training batches have it where `data.<name>` says what to read it from."""

    def shape(self, rows: int, tokens: int) -> tuple[int, ...]:
        """Shape of the array of a microbatch."""
        return (rows, tokens, *self.dims) if self.per == "token" else (rows, *self.dims)

    def checked(self, arrays: Mapping[str, np.ndarray], rows: int, tokens: int) -> np.ndarray:
        """The array of this field, in its dtype.

        Raises `UserError` where it is missing, has another shape, or has numbers that the dtype does not have.
        """
        shape, array = self.shape(rows, tokens), arrays.get(self.name)
        expected = f"expected {self.dtype} {list(shape)}, by {'row and token' if self.per == 'token' else 'row'}"
        if array is None:
            raise UserError(f"the batch has no field {self.name}; {expected}")
        if array.shape != shape or not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise UserError(f"the batch's field {self.name} is {array.dtype} {list(array.shape)}; {expected}")
        if self.wraps:
            return (array.astype(np.int64) % 2**31).astype(self.dtype)
        converted = array.astype(self.dtype, copy=False)
        if np.issubdtype(self.dtype, np.integer) and (converted != array).any():
            raise UserError(f"the batch's field {self.name} has numbers up to {np.abs(array).max()}; {expected}")
        if self.limits is not None and converted.size:
            (least, most), (low, high) = self.limits, (converted.min(), converted.max())
            if low < least or high > most:
                raise UserError(
                    f"the batch's field {self.name} has numbers from {low} to {high}; expected {least} to {most}"
                )
        return converted


TOKENS, POSITIONS = Field("tokens"), Field("positions")
"""The id of each token; the index of a token in its document, which positional embeddings use."""
CONTEXT = (POSITIONS, Field("indices"), Field("segments"), Field("examples", per="row", wraps=True))
"""The fields that every forward reads: positions; index of a token in its row; number of its document in the row, from
1, and 0 for padding; global index of the row's example."""
FORWARD = (TOKENS, *CONTEXT)
"""The fields of a batch of tokens for a forward."""
LABELS, MASK = Field("labels"), Field("mask", "float32")
"""The token after each token, and 1 where the loss counts it, else 0."""
UPDATES = Field("updates", per="step")
"""Updates of the weights before a training step."""


def union(*declared: Iterable[Field]) -> tuple[Field, ...]:
    """All fields, each once. The larger of two declarations of an optional field replaces the other."""
    by_name: dict[str, Field] = {}
    for field in chain(*declared):
        known = by_name.setdefault(field.name, field)
        assert known == field or field.optional, f"two declarations of the field {field.name}"
        by_name[field.name] = max(known, field, key=lambda one: (one.dims, one.limits or ()))
    return tuple(by_name.values())


@dataclass(frozen=True)
class BatchLayout:
    """The shapes and partitions of the arrays of a batch, and the order of its tokens."""

    fields: tuple[Field, ...]
    shape: tuple[int, ...]
    """[microbatch, row, token] of a batch, or [row, token] of a microbatch."""
    order: Int[np.ndarray, " token"] | None = dataclasses.field(default=None, compare=False)
    """The token at each offset of a row, the context ranks' parts one after another; None leaves tokens as they are."""
    row_axes: tuple[str, ...] = DATA_AXES
    """Axes that split the rows."""
    islands: int = 1
    """Islands, each with the same contiguous part of a batch whatever the number of microbatches."""

    @cached_property
    def partitions(self) -> dict[str, PartitionSpec]:
        """The partition of each array: rows over `row_axes`, tokens over context."""
        axes = {"token": (self.row_axes, "context"), "row": (self.row_axes,)}
        return {field.name: PartitionSpec(*self._before, *axes[field.per]) for field in self.fields}

    def abstract(self, mesh: Mesh | AbstractMesh) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes, dtypes and shardings of a placed batch, for compiling before there is one."""
        shardings = {name: NamedSharding(mesh, partition) for name, partition in self.partitions.items()}
        return {
            field.name: jax.ShapeDtypeStruct(self.array_shape(field), field.dtype, sharding=shardings[field.name])
            for field in self.fields
        }

    def array_shape(self, field: Field) -> tuple[int, ...]:
        """The global shape of the array of a field."""
        return (*self.shape[:-2], *field.shape(*self.shape[-2:]))

    def local_rows(self, mesh: Mesh) -> Int[np.ndarray, " rows"]:
        """Indices of the rows, within a batch, that this process has on its devices; ascending."""
        sharding = NamedSharding(mesh, PartitionSpec(*self._before, self.row_axes))
        parts = sharding.addressable_devices_indices_map(self.shape[:-1])
        return np.unique(np.concatenate([self._rows[index].ravel() for index in parts.values() if index is not None]))

    def place(
        self, mesh: Mesh, arrays: Mapping[str, np.ndarray], rows: Int[np.ndarray, " rows"] | None = None
    ) -> dict[str, jax.Array]:
        """Place the arrays of all fields on the devices of a mesh. Raises `UserError` where one is missing or wrong.

        Args:
            mesh: the devices.
            arrays: [row, ...], of the local rows at least.
            rows: the index of each row of `arrays`, ascending; None where they are all.
        """
        rows = np.arange(self._rows.size) if rows is None else rows
        order = np.arange(self.shape[-1]) if self.order is None else self.order
        token = len(self.shape) - 1

        def placed(field: Field) -> jax.Array:
            local = field.checked(arrays, len(rows), len(order))

            def part(index: Any) -> np.ndarray:
                mine = local[np.searchsorted(rows, self._rows[index[:token]])]
                return mine if field.per == "row" else mine.take(order[index[token]], axis=token)

            sharding = NamedSharding(mesh, self.partitions[field.name])
            return jax.make_array_from_callback(self.array_shape(field), sharding, part)

        return {field.name: placed(field) for field in self.fields}

    @property
    def _before(self) -> tuple[None, ...]:
        """The partition of the dims before rows."""
        return (None,) * (len(self.shape) - 2)

    @cached_property
    def _rows(self) -> Int[np.ndarray, "..."]:
        """The index of each row: islands split the rows of a microbatch as they split the batch."""
        *before, rows = self.shape[:-1]
        parts = np.arange(prod(self.shape[:-1])).reshape(self.islands, *before, rows // self.islands)
        return np.moveaxis(parts, 0, -2).reshape(self.shape[:-1])


class BatchPlacer:
    """Puts the rows of each batch that this process loads on its devices."""

    def __init__(self, batch: BatchLayout, mesh: Mesh):
        self.batch, self._mesh = batch, mesh
        self.rows = batch.local_rows(mesh)
        """Indices of the rows, within a batch, that this process loads; ascending."""

    def __call__(self, rows: Mapping[str, np.ndarray], batch: BatchLayout | None = None) -> dict[str, jax.Array]:
        """Place `rows` [row, ...], those of `self.rows`, as the arrays of `batch`, by default of a training step."""
        return (batch or self.batch).place(self._mesh, rows, self.rows)


def single_document_fields[A: (np.ndarray, jax.Array)](
    tokens: A, indices: A | None = None
) -> dict[str, A | np.ndarray]:
    """The fields of `FORWARD` for rows [row, token] that are one document each, or tokens of one at `indices`."""
    order = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape) if indices is None else indices
    return {
        "tokens": tokens.astype(np.int32), **dict.fromkeys(("positions", "indices"), order),
        "segments": np.ones(tokens.shape, np.int32), "examples": np.arange(len(tokens), dtype=np.int32),
    }  # fmt: skip
