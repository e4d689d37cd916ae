"""How modules declare weights: an `nnx.Param` without an array, which carries its `ParamSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpar.mesh.parameters import Nested, ParamSpec


def weight(shape: tuple[int, ...], axes: tuple[str, ...], **options: Any) -> nnx.Param:
    """Declare a weight of global `shape` with logical `axes`; `options` are the other fields of `ParamSpec`."""
    return _param(ParamSpec(shape, axes, **options))


def declare_weights(module: nnx.Module, specs: Mapping[str, ParamSpec]) -> None:
    """Create on `module` the weights that its part declares, each under its name."""
    for name, spec in specs.items():
        setattr(module, name, _param(spec))


def _param(spec: ParamSpec) -> nnx.Param:
    return nnx.Param(jax.ShapeDtypeStruct(spec.shape, jnp.float32), spec=spec)


def specs_of(module: nnx.Module) -> Nested[Any]:
    """The `ParamSpec` of every weight of `module`, as a nested dict."""
    _, state = nnx.split(module)
    tree: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(state):
        node = tree
        for name in path[:-1]:
            node = node.setdefault(str(name), {})
        node[str(path[-1])] = variable.get_metadata("spec")
    return tree


def with_weights[M: nnx.Module](module: M, weights: Nested[Any]) -> M:
    """A copy of `module` that holds the arrays of `weights`, which may be one rank's parts."""
    return nnx.merge(nnx.graphdef(module), weights)
