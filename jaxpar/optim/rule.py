"""The definition of an update rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpar.config.reading.typed import record_from_plain
from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.optim import moments
from jaxpar.optim.arguments import OptimizerArguments
from jaxpar.optim.moments import Blocked, Form

Shard = Float[Array, "*shard"]

type State = dict[str, Shard]
"""The arrays that a rule keeps of one weight, in float32, by name."""

type Granularity = Literal["element", "row", "matrix"]
"""Parts of a weight; a row has all elements with the same index of the first dim, as a layer's vector."""


class RuleRequest(NamedTuple):
    """The weight that a rule is for. State and granularity of the rule depend on neither `layout` nor `dtype`."""

    config: OptimizerConfig
    spec: ParamSpec
    moments: str = "float32"
    """Format of moments: `precision.moments`."""
    layout: PartitionSpec = PartitionSpec()
    """The weight's optimizer placement."""
    dtype: str = "float32"
    """Dtype of matmuls of matrices, and of the messages that exchange them (`dtypes.matrix` of a plan)."""

    def options[Record](self, record: type[Record]) -> Record:
        """`optimizer.options` as the dataclass of the rule; raises `UserError` for a wrong name or type."""
        return record_from_plain(record, self.config.options, "optimizer.options")

    def like_weight(self, *, signed: bool) -> ArraySpec:
        """A moment with the shape of the weight, stored as `precision.moments` says; see `array_spec`."""
        every = self.array_spec(range(len(self.spec.shape)))
        return ArraySpec(every.shape, every.dims, moments.form_of(self.moments, self.spec), signed)

    def array_spec(self, dims: Sequence[int]) -> ArraySpec:
        """A float32 array with these dims of the weight, each split as in the weight."""
        return ArraySpec(tuple(self.spec.shape[dim] for dim in dims), tuple((dim,) for dim in dims))


@dataclass(frozen=True)
class ArraySpec:
    """One array of a rule's state of a weight. It starts as zeros."""

    shape: tuple[int, ...]
    """Global shape. The first dim of a stacked weight's state is that of the layers."""
    dims: tuple[tuple[int, ...], ...]
    """The weight's dims over whose mesh axes each dim is split, in this order; () for a dim that is not split."""
    form: Form = "float32"
    """Storage between updates. Blocks of 8 bits are for arrays with the shape of the weight."""
    signed: bool = True

    @property
    def units(self) -> tuple[int, ...]:
        """Elements along each dim that are stored together, and so are not split."""
        blocks = self.form if isinstance(self.form, moments.Blocks) else None
        return tuple(blocks.size if blocks and blocks.dim == dim else 1 for dim in range(len(self.shape)))

    def partition(self, weight: PartitionSpec) -> PartitionSpec:
        """The partition of the array, from that of the weight."""
        split = [dim for dim, dims in enumerate(self.dims, 1) if dims and min(dims) < len(weight)]
        entries = [_entry(weight, dims) for dims in self.dims[: max(split, default=0)]]
        return PartitionSpec(*entries)

    def layout(self, weight: PartitionSpec) -> PartitionSpec | Blocked[PartitionSpec]:
        """The partition of the array as it is stored."""
        partition = self.partition(weight)
        return Blocked(partition, partition) if isinstance(self.form, moments.Blocks) else partition

    def local_shape(self, weight: ParamSpec, local: Sequence[int]) -> tuple[int, ...]:
        """The shape of a part, from the sizes of the weight's dims in that part."""
        parts = [prod(weight.shape[dim] for dim in dims) // prod(local[dim] for dim in dims) for dims in self.dims]
        return tuple(size // ranks for size, ranks in zip(self.shape, parts, strict=True))

    def local_bytes(self, weight: ParamSpec, local: Sequence[int]) -> float:
        """Stored bytes of a part, with its scales, from the sizes of the weight's dims in that part."""
        form = self.form
        each = 1 + 4 / form.size if isinstance(form, moments.Blocks) else jnp.dtype(form).itemsize
        return each * prod(self.local_shape(weight, local))

    def zeros(self, weight: ParamSpec, master: Shard) -> Shard | Blocked[Array]:
        """The stored array before the first update, for the part `master` of the weight."""
        shape = self.local_shape(weight, master.shape)
        like = master if shape == master.shape else jnp.zeros(shape, jnp.float32)
        return moments.zeros(self.form, like, signed=self.signed)


@dataclass(frozen=True)
class Rule:
    """A function from a weight's gradient to the direction in which the weight moves.

    The optimizer does the rest, the same for every rule: `weight -= rate * (direction + decay * weight)`, where the
    rate and the decay are arguments of the step, as every number with a fraction is that a rule reads of the
    configuration, those of `optimizer.options` too.
    """

    state: Mapping[str, ArraySpec]
    """The arrays that the rule keeps, by name."""
    direction: Callable[[Shard, Shard, State, Int[Array, ""], OptimizerArguments], tuple[Shard, State]]
    """`(gradient, weight, state, step, arguments) -> (direction, new state)`, all float32 and local shards, inside
    `shard_map`; `step` counts the updates applied before this one."""
    granularity: Granularity = "element"
    """The largest part of the weight that the rule reads to update an element: the element itself, its row or
    its matrix. Larger weights are updated in pieces where their state is not on the device."""
    rate: Callable[[OptimizerArguments], Float[Array, ""]] = lambda arguments: arguments.learning_rate
    """The learning rate of a step, from its arguments."""
    matmuls: tuple[tuple[float, int, int, int], ...] = ()
    """The matmuls of one matrix in a step, for the planner: times, rows, columns, and the dim that is summed."""

    def cuts(self, spec: ParamSpec) -> bool:
        """Whether some rows of the weight's first dim may be updated without the others."""
        in_rows = self.granularity == "row" and len(spec.shape) > 1
        return is_stacked(spec) or in_rows or self.granularity == "element"


def _entry(weight: PartitionSpec, dims: tuple[int, ...]) -> str | tuple[str, ...] | None:
    """The entry of a partition for a dim that is split over the axes of these dims of the weight."""
    if len(dims) == 1:
        return weight[dims[0]] if dims[0] < len(weight) else None
    return sum((axes_of_dim(weight, dim) for dim in dims), ()) or None


def is_stacked(spec: ParamSpec) -> bool:
    """Whether the first dim of a weight counts layers, each a weight of its own."""
    return spec.axes[:1] == ("layers",)
