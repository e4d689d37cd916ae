"""Placements: how each weight, gradient and optimizer state is sharded, and its dtype.

A ZeRO stage is a choice of placements and nothing else:

| stage | storage | gradient | optimizer |
|-------|---------|----------|-----------|
| 0     | compute | compute  | compute   |
| 1     | compute | compute  | sharded   |
| 2     | compute | sharded  | sharded   |
| 3     | sharded | sharded  | sharded   |

`compute` is tensor, routed and pipeline parallelism; `sharded` is compute plus `SHARD_AXES`: all axes but `replica`
over which ranks multiply with the same weights. Routed ones are split over `ROUTED_AXES` in both, and over fsdp and
context in `sharded` alone. HSDP is stage 3 with `replica` above 1: the weights are sharded inside a replica and the
gradients summed across replicas. With `over_replicas` the optimizer placement, of every stage but 0, is split over
`replica` too: a dim that is sharded takes it as its innermost axis, so that the
shards of a rank's replicas are its own shard in `sharded`.

**Under a pipeline** the weights outside the layers are gathered once a step at every stage, not once a microbatch, and
their gradients are also reduced once a step: embedding and head are used in most ticks. Gradients of stage 2 accumulate
as under stage 1, and are reduced once a step: a pipeline runs many microbatches through the same weights.

**Dims that do not divide.** These axes split the first of `SHARD_ORDER` whose size, after tensor
parallelism, divides by their product. A weight without such a dim is not sharded, and neither is any
vector (norms, biases of one dim). Where a sharded dim does not divide by the replicas too, each of them has the
weight's optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod

import jax
from jax.sharding import PartitionSpec
from jax.tree_util import KeyPath

from jaxpar.config.plan import AxisSizes, Dtypes
from jaxpar.mesh.axes import AXES, SHARD_AXES
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import ModelTree, Nested, ParamSpec, Partitions, Specs, map_specs, subtree_like
from jaxpar.mesh.quantized.transport import EXACT, Transport, hpz_ranks
from jaxpar.mesh.rules import Rules, axes_of_dim, mesh_axes_of, partition, rules_of

SHARD_ORDER = ("embed", "mlp", "vocab", "positions", "latent", "heads", "kv_heads", "head_dim")
"""Logical axes that fsdp may split; it takes the first that it can."""

TABLES = ("vocab", "positions")
"""Logical axes of the rows that tokens look up."""

REPLICAS = ("replica",)
"""Axes over which optimizer state may be split, and neither weights nor the gradients that accumulate."""


@dataclass(frozen=True)
class WeightPlacement:
    """The partitions of one weight in its four roles. A leaf of trees."""

    shape: tuple[int, ...]
    """The global shape of the weight."""
    compute: PartitionSpec
    storage: PartitionSpec
    gradient: PartitionSpec
    optimizer: PartitionSpec
    """The placement between steps; that of `storage` for a frozen weight."""
    transport: Transport
    """Transport of the weight and its gradient between them."""
    in_float32: bool = False
    """It is stored and used, and its gradient accumulates, in float32 or wider whatever the roles' dtypes."""

    def dtype(self, of_role: str) -> jax.numpy.dtype:
        """The dtype of the weight, or of its gradient, in a role whose dtype is `of_role`."""
        return jax.numpy.promote_types(of_role, "float32") if self.in_float32 else jax.numpy.dtype(of_role)


@dataclass(frozen=True)
class Placement:
    """The partition of every weight in one role, and the dtype it has there."""

    layout: Partitions
    """A `PartitionSpec` per weight."""
    dtype: str


@dataclass(frozen=True)
class Placements:
    """The four roles of all weights."""

    weights: ModelTree[WeightPlacement]
    dtypes: Dtypes

    @cached_property
    def compute(self) -> Placement:
        """The placement in which weights are multiplied."""
        return Placement(jax.tree.map(lambda weight: weight.compute, self.weights), self.dtypes.compute)

    @cached_property
    def storage(self) -> Placement:
        """The placement in which weights are stored during a step."""
        return Placement(jax.tree.map(lambda weight: weight.storage, self.weights), self.dtypes.storage)

    @cached_property
    def storage_dtypes(self) -> ModelTree[jax.numpy.dtype]:
        """The dtype of each weight in `storage`."""
        return jax.tree.map(lambda weight: weight.dtype(self.dtypes.storage), self.weights)

    @cached_property
    def gradient(self) -> Placement:
        """The placement in which gradients accumulate."""
        return Placement(jax.tree.map(lambda weight: weight.gradient, self.weights), self.dtypes.gradient)

    @cached_property
    def optimizer(self) -> Placement:
        """Layout of master weights and optimizer state between steps."""
        return Placement(jax.tree.map(lambda weight: weight.optimizer, self.weights), self.dtypes.master)

    def for_part(self, part: str | tuple[str, ...], like: Nested[object] | None = None) -> Nested[WeightPlacement]:
        """The placements of the weights of a part of the model, named by its path; of those that `like` has, if any."""
        path = (part,) if isinstance(part, str) else part
        placed = reduce(lambda tree, name: tree[name], path, self.weights)
        return placed if like is None else subtree_like(placed, like)


def place(
    specs: Specs,
    sizes: AxisSizes,
    zero: int,
    dtypes: Dtypes,
    rules: Rules,
    *,
    over_replicas: bool = False,
    transport: Transport = EXACT,
) -> Placements:
    """Placements of `specs` on a mesh of `sizes` under ZeRO stage `zero`, for products that `rules` split.

    `over_replicas` splits the optimizer placement over replicas. `transport` is that of the large matrices.
    """
    assert zero or not over_replicas, "under ZeRO-0 the optimizer placement is that of compute"

    def one(path: KeyPath, spec: ParamSpec) -> WeightPlacement:
        claims = rules_of(spec, rules, dict(sizes))
        compute = partition(spec, claims)
        sharded = partition(spec, _shard(spec, claims, sizes))
        # A pipeline uses its ends in most ticks, and every layer once per microbatch: see the module.
        inside = sizes.pipe == 1 or getattr(path[0], "key", None) == LAYERS
        storage = sharded if zero >= 3 and inside else compute
        gradient = storage if zero != 2 else sharded if sizes.pipe == 1 else compute
        updated = partition(spec, _shard(spec, claims, sizes, over_replicas)) if zero >= 1 else compute
        # Nothing updates a frozen weight: it stays as it is stored, and no step gathers it from elsewhere.
        roles = compute, storage, gradient, updated if spec.trained else storage
        # bfloat16 counts to 256.
        in_float32 = spec.balance_rate is not None
        return WeightPlacement(spec.shape, *roles, _transport(spec, claims, sizes, transport), in_float32)

    weights = jax.tree_util.tree_map_with_path(one, specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    return Placements(weights, dtypes)


def _transport(spec: ParamSpec, rules: Rules, sizes: AxisSizes, transport: Transport) -> Transport:
    """Transport of a weight: an hpZ shard of a routed matrix has the neighbours that share it."""
    claimed = {axis for name in spec.axes for axis in getattr(rules, name)}
    hpz = hpz_ranks(transport.hpz, dict(sizes), claimed)
    assert hpz is not None, "neighbours that are whole ranks of an axis"
    return replace(
        transport if is_quantizable(spec) else transport.exact,
        hpz=hpz,
        rows=transport.rows and spec.axes[-1] == "embed" and spec.axes[0] in TABLES,
    )


def is_quantizable(spec: ParamSpec) -> bool:
    """Whether a weight and its gradient may be sent quantized: not norms and biases, which few elements would profit,
    nor a router, whose small errors send tokens to other matrices."""
    return (spec.matrix or spec.decay) and "router" not in spec.axes


def _shard(spec: ParamSpec, rules: Rules, sizes: AxisSizes, over_replicas: bool = False) -> Rules:
    """`rules` with `SHARD_AXES` added to the logical axis of `spec` that can take them; and `replica` to the same, or
    where there is none, to any."""
    if len(spec.axes) - ("layers" in spec.axes) < 2:
        return rules
    claimed = {axis for name in spec.axes for axis in getattr(rules, name)}
    axes = tuple(axis for axis in SHARD_AXES if getattr(sizes, axis) > 1 and axis not in claimed)
    name = _divided(spec, rules, sizes, axes)
    if name is not None:
        rules = replace(rules, **{name: getattr(rules, name) + axes})
    more = REPLICAS if over_replicas else ()
    name = _divided(spec, rules, sizes, more, SHARD_ORDER if name is None else (name,))
    return rules if name is None else replace(rules, **{name: getattr(rules, name) + more})


def _divided(
    spec: ParamSpec, rules: Rules, sizes: AxisSizes, axes: tuple[str, ...], names: tuple[str, ...] = SHARD_ORDER
) -> str | None:
    """The first of the logical axes `names` of `spec` whose local size divides by `axes`; None if that is one rank."""
    parts = prod(sizes[axis] for axis in axes)
    for name in names if parts > 1 else ():
        if name in spec.axes:
            size = spec.shape[spec.axes.index(name)]
            if size // prod(sizes[axis] for axis in getattr(rules, name)) % parts == 0:
                return name
    return None


def message_axes(axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The axes of each message of a gradient that is scattered over `axes`, in order: inside the replicas first, which
    leaves little to send between them. Weights are gathered in the reverse order."""
    inside = tuple(axis for axis in axes if axis not in REPLICAS)
    return tuple(message for message in (inside, axes[len(inside) :]) if message)


def added_dim(outer: PartitionSpec, inner: PartitionSpec) -> tuple[int, tuple[str, ...]] | None:
    """The dim that `inner` splits over more axes than `outer` does, and those axes; None if they are equal."""
    for dim in range(max(len(outer), len(inner))):
        more = axes_of_dim(inner, dim)[len(axes_of_dim(outer, dim)) :]
        if more:
            return dim, more
    return None


def unreduced_axes(compute: PartitionSpec) -> tuple[str, ...]:
    """Axes over which ranks hold partial gradients of a weight: those it is not split over while multiplied."""
    return tuple(axis for axis in AXES if axis not in mesh_axes_of(compute))


def local_shape(shape: tuple[int, ...], layout: PartitionSpec, sizes: Mapping[str, int] | AxisSizes) -> tuple[int, ...]:
    """Shape of one device's part."""
    local = list(shape)
    for dim in range(len(shape)):
        for axis in axes_of_dim(layout, dim):
            assert local[dim] % sizes[axis] == 0, f"dim {dim} of {shape} does not divide under {layout}"
            local[dim] //= sizes[axis]
    return tuple(local)


def bytes_per_device(specs: Specs, placement: Placement, sizes: AxisSizes) -> int:
    """Bytes that one device holds of all weights in `placement`."""
    elements = map_specs(lambda spec, layout: prod(local_shape(spec.shape, layout, sizes)), specs, placement.layout)
    return jax.numpy.dtype(placement.dtype).itemsize * sum(jax.tree.leaves(elements))
