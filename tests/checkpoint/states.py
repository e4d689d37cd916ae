"""Small states with hard values, and their shardings over meshes of any size."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Moments(NamedTuple):
    """Stands for an optimizer's state: a container that is not a dict."""

    first: dict[str, Any]
    second: dict[str, Any]


def mesh_of(**axes: int) -> Mesh:
    """A mesh of the first devices, as many as the axes need."""
    devices = np.array(jax.devices()[: int(np.prod(list(axes.values())))]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes))


def hard_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Any bit pattern of the dtype: NaNs with payloads, infinities, subnormals and negative zeros among them."""
    dtype = np.dtype(dtype)
    return rng.integers(0, 256, size=(int(np.prod(shape)) * dtype.itemsize,), dtype=np.uint8).view(dtype).reshape(shape)


def host_state(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    matrix = {"up": (4, 16, 24), "scale": (4, 16)}
    return {
        "master": {name: hard_values(rng, shape, np.float32) for name, shape in matrix.items()},
        "optimizer": Moments(
            {name: hard_values(rng, shape, jnp.bfloat16) for name, shape in matrix.items()},
            {name: np.full(shape, -0.0, np.float32) for name, shape in matrix.items()},
        ),
        "key": hard_values(rng, (2,), np.uint32),
        "step": np.int32(seed),
    }


def sharding_of(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
    """Split the last dims over the mesh axes, as far as they divide; the rest is replicated."""
    spec: list[str | None] = [None] * len(shape)
    for axis, dim in zip(mesh.axis_names, range(len(shape) - 1, -1, -1), strict=False):
        if shape[dim] % mesh.shape[axis] == 0:
            spec[dim] = axis
    return NamedSharding(mesh, PartitionSpec(*spec))


def put(state: Any, mesh: Mesh) -> Any:
    return jax.tree.map(lambda value: jax.device_put(value, sharding_of(mesh, value.shape)), state)


def like(state: Any, mesh: Mesh) -> Any:
    return jax.tree.map(
        lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding_of(mesh, value.shape)), state
    )
