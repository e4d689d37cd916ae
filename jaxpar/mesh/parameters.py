"""The declaration of a weight, before there is an array: shape, logical axes and initial values."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jax.tree_util import KeyPath
from jaxtyping import Array, Float, Int, PyTree, UInt

from jaxpar.mesh.layer_order import PADDING, LayerOrder, without_kind

type Nested[Leaf] = dict[str, PyTree[Leaf]]
"""Leaves by name, in dicts of any depth: those of a layer, or of another part of a model."""

type Arrays = Nested[jax.Array]
"""The weights of a part of a model, or a tree of the same structure."""

type ModelTree[Leaf] = dict[str, PyTree[Leaf]]
"""A leaf for each weight of a model: `Nested` leaves of `embedding`, `final_norm`, `head` (unless it is tied to the
embedding), and at `LAYERS` those of all layers stacked, for each kind."""

type Weights = ModelTree[jax.Array]
"""Weights, or their gradients."""

type Specs = ModelTree[ParamSpec]
type Partitions = ModelTree[PartitionSpec]


ROUTED = "experts"
"""The logical axis of matrices among which a router chooses some for each token."""
ADAPTERS = "adapters"
"""The logical axis of factors of several adapters, of which each row of generation uses one."""
STACKS = ("layers", ADAPTERS, ROUTED)
"""Logical axes that number matrices; they are the first dims of a weight."""


@dataclass(frozen=True)
class ParamSpec:
    """One weight, declared once; abstract values, placements and initial values are derived from it."""

    shape: tuple[int, ...]
    """Global shape; stacked layers have `layers` as first dim."""
    axes: tuple[str, ...]
    """Logical name of each dim."""
    init: Literal["normal", "zeros", "ones"] | Callable[[Array, tuple[int, ...]], Array] = "normal"
    """Distribution of the initial values, or a function from a key and a shape to them."""
    scale: float = 1.0
    """Standard deviation of a normal initial value."""
    inputs: int = 1
    """Leading dims (after those of `stack`) that a matmul contracts: the matrix is [prod(inputs), prod(the rest)]."""
    matrix: bool = False
    """A layer's weight matrix, which Muon orthogonalises."""
    decay: bool = False
    """Whether weight decay applies."""
    trained: bool = True
    """It has gradients and is updated; else it is frozen, without gradient, moments or master copy."""
    balance_rate: float | None = None
    """Its gradient is no gradient but counts tokens: each update moves it by so much towards equal counts."""
    padding: int = 0
    """Last indices of the dim `vocab` that stand for no token: their values and gradients are zero."""

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), f"{self.shape} has other dims than {self.axes}"
        assert all(axis in STACKS for axis in self.axes[: self.stack]), f"{self.axes}: what numbers matrices is first"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def unpadded_shape(self) -> tuple[int, ...]:
        """Global shape without the padding of the vocabulary."""
        return tuple(
            size - self.padding if axis == "vocab" else size for size, axis in zip(self.shape, self.axes, strict=True)
        )

    @property
    def stack(self) -> int:
        """Leading dims that number matrices: those of `STACKS`."""
        return len([axis for axis in self.axes if axis in STACKS])

    @property
    def routed(self) -> int | None:
        """Matrices of a layer among which a router chooses; None where a token uses the weight in any case."""
        return self.shape[self.axes.index(ROUTED)] if ROUTED in self.axes else None

    def stacked(self, layers: int) -> ParamSpec:
        """The spec of `layers` such weights in one array."""
        return replace(self, shape=(layers, *self.shape), axes=("layers", *self.axes))


def map_specs[T](function: Callable[..., T], specs: Specs, *rest: ModelTree[object]) -> ModelTree[T]:
    """`jax.tree.map` over the `ParamSpec` leaves of `specs` and the matching leaves of `rest`."""
    return jax.tree.map(function, specs, *rest, is_leaf=lambda x: isinstance(x, ParamSpec))


def subtree_like[Leaf](tree: Nested[Leaf], like: Nested[object]) -> Nested[Leaf]:
    """The leaves of `tree` that `like` has too."""
    return {
        name: subtree_like(tree[name], entry) if isinstance(entry, dict) else tree[name] for name, entry in like.items()
    }


def select[Leaf](tree: Nested[Leaf], mask: Nested[bool], wanted: bool) -> Nested[Leaf]:
    """The leaves of `tree` whose `mask` is `wanted`, as nested dicts without empty ones."""
    selected = {}
    for name, entry in tree.items():
        if isinstance(entry, dict):
            if part := select(entry, mask[name], wanted):
                selected[name] = part
        elif mask[name] == wanted:
            selected[name] = entry
    return selected


def merge[Leaf](under: Nested[Leaf], over: Nested[Leaf]) -> Nested[Leaf]:
    """Nested dicts with the leaves of both; those of `over` where both have one."""
    both = dict(under)
    for name, entry in over.items():
        both[name] = merge(both[name], entry) if isinstance(entry, dict) and name in both else entry
    return both


def initial_weights(specs: Specs, seed: int | UInt[Array, ""], order: LayerOrder) -> Weights:
    """Initial float32 values of `specs`: a weight's key depends only on the seed, its path and its layer's number,
    and not on the name of its layer's kind.

    Call it under `jax.jit` with `out_shardings`: the values are then made shard by shard and are bit-identical on
    every mesh (eager and compiled generators differ in the last bit). Rows that pad a stack or the vocabulary are zero.
    """

    def value(path: KeyPath, spec: ParamSpec) -> jax.Array:
        numbers = order.stack_at(path).numbers.ravel() if "layers" in spec.axes else ()
        name = jax.tree_util.keystr(without_kind(path))
        return initial_weight(name, spec, seed, jnp.asarray(numbers, jnp.int32))

    return jax.tree_util.tree_map_with_path(value, specs, is_leaf=lambda x: isinstance(x, ParamSpec))


def initial_weight(
    name: str, spec: ParamSpec, seed: int | UInt[Array, ""], numbers: Int[Array, " rows"]
) -> Float[Array, "..."]:
    """`initial_weights` of the weight whose path, without a kind of layers, is `name`; of a stacked one, the rows of
    layers with these numbers."""
    root = jax.random.key(seed)

    def one(shape: tuple[int, ...], layer: Int[Array, ""] | None = None) -> jax.Array:
        if spec.init in ("zeros", "ones"):
            return jnp.full(shape, float(spec.init == "ones"), jnp.float32)
        key = jax.random.fold_in(root, zlib.crc32(name.encode()))
        key = key if layer is None else jax.random.fold_in(key, layer)
        if callable(spec.init):
            return spec.init(key, shape)
        return spec.scale * jax.random.normal(key, shape, jnp.float32)

    if "layers" not in spec.axes:
        return _without_padding(one(spec.shape), spec)
    rows = jax.vmap(lambda layer: one(spec.shape[1:], layer))(numbers)
    return jnp.where((numbers != PADDING).reshape(-1, *[1] * (len(spec.shape) - 1)), rows, 0.0)


def _without_padding(value: Float[Array, "..."], spec: ParamSpec) -> Float[Array, "..."]:
    """`value` with zeros in the padding of the vocabulary."""
    if not spec.padding:
        return value
    dim = spec.axes.index("vocab")
    indices = lax.broadcasted_iota(jnp.int32, spec.shape, dim)
    return jnp.where(indices < spec.unpadded_shape[dim], value, 0.0)
