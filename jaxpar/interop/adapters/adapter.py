"""The factors of an adapter, and the weights of a model with several adapters beside them, or with one merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX, weight_specs
from jaxpar.interop.sources.source import ReadWeights
from jaxpar.interop.sources.tensor_files import TensorFiles
from jaxpar.layers.adapters import FACTORS
from jaxpar.layers.declaration.adaptation import AdapterStack

type Pair = tuple[np.ndarray, np.ndarray]

LARGEST_RANK = 512


@dataclass(frozen=True)
class StoredPair:
    """The factors A and B of a module in files.

    Args:
        files: that have them.
        names: of both.
        scale: of B.
    """

    files: TensorFiles
    names: Sequence[str]
    scale: np.float32

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of A and B."""
        return tuple(self.files.tensors[name].shape for name in self.names)

    @property
    def shown(self) -> str:
        """`shapes` for a message."""
        return " and ".join(str([*shape]) for shape in self.shapes)

    def read(self, rank: int, matrices: int, where: str) -> Pair:
        """Both in float32, with the scale, of shapes that were checked.

        Args:
            rank: of the module, which is at most the sum of those of its matrices.
            matrices: their number.
            where: names the adapter, for messages.

        Raises:
            UserError: the rank is too large, before anything is read; or they cannot be read.
        """
        if rank > LARGEST_RANK * matrices:
            raise UserError(f"{where} has rank {rank} in {self.names[0]}; expected at most {LARGEST_RANK * matrices}")
        regions = [tuple(slice(0, size) for size in shape) for shape in self.shapes]
        a, b = (self.files.read(*one) for one in zip(self.names, regions, strict=True))
        return a.astype(np.float32), self.scale * b


@dataclass(frozen=True, eq=False)
class Adapter:
    """Factors for matrices of a model."""

    factors: Mapping[tuple[str, int], Pair]
    """Factors A [*inputs, rank] and B [rank, *outputs] in float32, by matrix name and layer; B includes the scale.
    Those of routed experts have the expert as their first dim."""

    @property
    def rank(self) -> int:
        """The largest rank of any matrix."""
        return max((a.shape[-1] for a, _ in self.factors.values()), default=1)


def group_by_matrix(factors: Iterable[tuple[tuple[str, int], Pair]], where: str) -> dict[tuple[str, int], Pair]:
    """Factors by the names and layers of their matrices.

    Args:
        factors: with the name and layer of each.
        where: names the adapter, for messages.

    Raises:
        UserError: a matrix has several, or their numbers are not finite.
    """
    pairs: dict[tuple[str, int], Pair] = {}
    for (weight, layer), pair in factors:
        matrix = f"{weight.removeprefix(LAYER_PREFIX)} of layer {layer}"
        if (weight, layer) in pairs:
            raise UserError(
                f"{where} has factors for {matrix} twice; expected those of one module, or of an array of experts or "
                "of modules of each"
            )
        if not all(np.isfinite(one).all() for one in pair):
            raise UserError(
                f"{where} has factors for {matrix} that are infinite or not a number; expected finite numbers"
            )
        pairs[weight, layer] = pair
    return pairs


@dataclass(frozen=True, eq=False)
class AdapterSource:
    """The weights of a model, and beside them the factors of several adapters, padded to one rank.

    Args:
        base: the model.
        adapters: by their index; None leaves room for one.
        room: for them; by default what they need.
    """

    base: ReadWeights
    adapters: Sequence[Adapter | None]
    room: AdapterStack | None = None

    def __post_init__(self) -> None:
        assert len(self.adapters) == self.stack.size, "each has an index"
        for one in self.adapters:
            if one is not None:
                check_room(one, self.stack)

    @cached_property
    def stack(self) -> AdapterStack:
        """The room for the adapters."""
        some = [one for one in self.adapters if one is not None]
        rank = max((one.rank for one in some), default=1)
        names = sorted({weight.rpartition(".")[2] for one in some for weight, _ in one.factors})
        return self.room or AdapterStack(rank, float(rank), tuple(names), size=len(self.adapters))

    @property
    def model(self) -> ModelConfig:
        return self.base.model

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        """See `WeightSource`; factors are [layer, adapter, ...], or [layer, expert, adapter, ...] of routed experts."""
        if layers is None or not weight.endswith(FACTORS):
            return self.base.read(weight, layers, region)
        matrix, second = (
            weight.removesuffix(f"_{FACTORS[0]}").removesuffix(f"_{FACTORS[1]}"),
            weight.endswith(FACTORS[1]),
        )
        axis = stack_of(self.model, matrix, layers[0])
        chosen, region = self.adapters[region[axis]], (*region[:axis], *region[axis + 1 :])
        return np.stack(
            [np.stack([self._part(one, (matrix, at), second, region) for one in chosen], axis) for at in layers]
        )

    def _part(self, adapter: Adapter | None, key: tuple[str, int], second: bool, region: Region) -> np.ndarray:
        pair = None if adapter is None else adapter.factors.get(key)
        if pair is None:
            return np.zeros([part.stop - part.start for part in region], np.float32)
        values, padding = pair[second], [(0, 0)] * len(region)
        assert self.stack.rank is not None, "a stack has a rank"
        padding[stack_of(self.model, *key) if second else -1] = 0, self.stack.rank - pair[0].shape[-1]
        return np.pad(values, padding)[region]


@dataclass(frozen=True, eq=False)
class MergedAdapter:
    """The weights of a model with those of an adapter added, computed in float32."""

    base: ReadWeights
    adapter: Adapter

    @property
    def model(self) -> ModelConfig:
        return self.base.model

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        """See `WeightSource`."""
        values = self.base.read(weight, layers, region)
        pairs = [self.adapter.factors.get((weight, layer)) for layer in layers or ()]
        if not any(pairs):
            return values
        values = values.astype(np.float32)
        for index, pair in enumerate(pairs):
            if pair is not None:
                values[index] += product(*pair, stack_of(self.model, weight, (layers or ())[index]), region)
        return values


def stack_of(model: ModelConfig, weight: str, layer: int) -> int:
    """Leading dims of a weight that number matrices of one layer: that of routed experts, or none."""
    return weight_specs(model, layer_kinds(model)[layer])[weight].stack


def product(a: np.ndarray, b: np.ndarray, stack: int, region: Region) -> np.ndarray:
    """A region of the product of two factors, which have `stack` leading dims in common."""
    first, second = a[region[: a.ndim - 1]], b[*region[:stack], :, *region[a.ndim - 1 :]]
    return first @ second if stack else np.tensordot(first, second, 1)


def check_room(adapter: Adapter, stack: AdapterStack) -> None:
    """Raise `UserError` for an adapter that a stack has no room for."""
    assert stack.rank is not None and stack.targets is not None, "a stack has a rank and targets"
    if adapter.rank > stack.rank:
        raise UserError(f"an adapter of rank {adapter.rank} does not fit beside others; expected at most {stack.rank}")
    for weight, _ in adapter.factors:
        if weight.rpartition(".")[2] not in stack.targets:
            raise UserError(
                f"an adapter has factors for {weight.removeprefix(LAYER_PREFIX)}; expected some of "
                f"{', '.join(stack.targets)}, for which there is room"
            )
