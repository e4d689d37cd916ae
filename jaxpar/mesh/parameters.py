"""What a weight is, before there is an array: shape, logical axes and how it starts."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpar.mesh.layer_order import PADDING, LayerOrder

type Tree = Any
"""A nested dict of arrays, specs or partition specs."""


@dataclass(frozen=True)
class ParamSpec:
    """One weight, declared once; abstract values, placements and initial values are derived from it."""

    shape: tuple[int, ...]
    """Global shape; stacked layers have `layers` as first dim."""
    axes: tuple[str, ...]
    """Logical name of each dim."""
    init: Literal["normal", "zeros", "ones"] = "normal"
    """Distribution of the initial values."""
    scale: float = 1.0
    """Standard deviation of a normal initial value."""
    inputs: int = 1
    """Leading dims (after `layers`) that a matmul contracts: the matrix is [prod(inputs), prod(the rest)]."""
    matrix: bool = False
    """A layer's weight matrix, which Muon orthogonalises."""
    decay: bool = False
    """Weight decay applies."""

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), f"{self.shape} has other dims than {self.axes}"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def stacked(self, layers: int) -> ParamSpec:
        """The spec of `layers` such weights in one array."""
        return replace(self, shape=(layers, *self.shape), axes=("layers", *self.axes))


def map_specs(function: Any, specs: Tree, *rest: Tree) -> Tree:
    """`jax.tree.map` over the `ParamSpec` leaves of `specs` and the matching leaves of `rest`."""
    return jax.tree.map(function, specs, *rest, is_leaf=lambda x: isinstance(x, ParamSpec))


def initial_weights(specs: Tree, seed: int, order: LayerOrder) -> Tree:
    """Initial float32 values of `specs`: a weight's key depends on the seed, its path and its layer's number alone,
    and not on the name of its layer's kind.

    Call it under `jax.jit` with `out_shardings`: the values are then made shard by shard and are bit-identical on
    every mesh (eager and compiled generators differ in the last bit). Rows that only pad the stack are zero.
    """

    def value(path: Any, spec: ParamSpec) -> jax.Array:
        numbers = order.stack_at(path).numbers.ravel() if "layers" in spec.axes else ()
        name = jax.tree_util.keystr(order.without_kind(path))
        return initial_weight(name, spec, seed, jnp.asarray(numbers, jnp.int32))

    return jax.tree_util.tree_map_with_path(value, specs, is_leaf=lambda x: isinstance(x, ParamSpec))


def initial_weight(name: str, spec: ParamSpec, seed: int, numbers: Int[Array, " rows"]) -> Float[Array, "..."]:
    """`initial_weights` of the weight whose path, without a kind of layers, is `name`; of a stacked one, the rows of
    layers with these numbers."""
    root = jax.random.key(seed)

    def one(shape: tuple[int, ...], layer: Any = None) -> jax.Array:
        if spec.init != "normal":
            return jnp.full(shape, float(spec.init == "ones"), jnp.float32)
        key = jax.random.fold_in(root, zlib.crc32(name.encode()))
        key = key if layer is None else jax.random.fold_in(key, layer)
        return spec.scale * jax.random.normal(key, shape, jnp.float32)

    if "layers" not in spec.axes:
        return one(spec.shape)
    rows = jax.vmap(lambda layer: one(spec.shape[1:], layer))(numbers)
    return jnp.where((numbers != PADDING).reshape(-1, *[1] * (len(spec.shape) - 1)), rows, 0.0)
