"""The FP8 matmuls of a layer, their formats and scales: the recipe of `precision.matmul`, in static form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import jax

from jaxpar.config.schema import PrecisionConfig

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
"""The largest number of each format. Both are 1.75 times a power of two."""


@dataclass(frozen=True)
class Tiles:
    """The numbers of an operand that share a scale."""

    size: int
    """Numbers of a row, along the side that a product sums over."""
    square: bool
    """Whether weights are cut into squares of this side."""

    def along(self, rows: bool) -> tuple[int, int]:
        """Rows and columns of a tile of neighbours along the rows, or else along the columns."""
        return (self.size, 1) if rows else (1, self.size)

    def weight_tile(self, rows: bool) -> tuple[int, int]:
        """`along`, for a matrix."""
        return (self.size, self.size) if self.square else self.along(rows)


TILES = {"fp8_block": Tiles(128, square=True), "mxfp8": Tiles(32, square=False)}
"""Tiles by `precision.matmul`; the other recipes have one scale for a tensor."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class Recipe:
    """The way a tensor becomes quantized values of 8 bits and their scales."""

    from_history: bool = False
    """Whether scales come from earlier steps; else from the tensor itself."""
    tiles: Tiles | None = None
    """None if a tensor has one scale."""
    backend: str = "auto"
    """The implementation of `pallas_kernels.tiled_matmul` that multiplies tiles."""

    @property
    def gradient(self) -> str:
        """Format of the gradients of outputs; inputs and weights are `E4M3`.

        A tile spans fewer powers of two than a tensor: it has more use for significant bits (arXiv:2412.19437, section
        3.3; arXiv:2209.05433, section 3.1, for tensors).
        """
        return E5M2 if self.tiles is None else E4M3


def recipe_of(precision: PrecisionConfig) -> Recipe | None:
    """The recipe of a configuration; None where matmuls run in the compute dtype."""
    if precision.matmul is None:
        return None
    tiles = TILES.get(precision.matmul)
    return Recipe(precision.matmul == "fp8_delayed", tiles, backend=precision.matmul_options.backend)


def unquantized(precision: PrecisionConfig) -> PrecisionConfig:
    """`precision` without FP8."""
    usual = PrecisionConfig()
    names = [field.name for field in fields(PrecisionConfig) if field.name.startswith("matmul")]
    return replace(precision, **{name: getattr(usual, name) for name in names})


@dataclass(frozen=True)
class QuantizedGroups:
    """The groups of matmuls of a kind of layers that are quantized, as a layer's program needs to know them."""

    recipe: Recipe
    columns: Mapping[str, range]
    """The indices of each group's tensors (`group_tensors`) among those of a layer."""
    exact_layers: tuple[int, int] | None
    """Layers before the first number, and from the second on, are multiplied exactly; None if no layer that runs the
    program is."""
    kind: str
    """The kind of the layers."""
    tensors: int
    """Tensors of a layer that have a scale, in all groups of all kinds."""

    def __hash__(self) -> int:
        return hash((self.recipe, self.kind, tuple(self.columns.items()), self.exact_layers))


def group_tensors(group: str, matrices: tuple[str, ...]) -> tuple[str, ...]:
    """The tensors of a group that have a scale, in the order in which functions take and give them."""
    return (f"{group}.input", *matrices, *(f"{name}.gradient" for name in matrices))
