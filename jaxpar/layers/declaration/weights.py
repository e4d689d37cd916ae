"""Declarations of weights in modules: an `nnx.Param` without an array, which carries its `ParamSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpar.mesh.parameters import Nested, ParamSpec


def declare_weights(module: nnx.Module, specs: Mapping[str, ParamSpec]) -> None:
    """Create on `module` the weights that its part declares, each under its name."""
    for name, spec in specs.items():
        setattr(module, name, nnx.Param(jax.ShapeDtypeStruct(spec.shape, jnp.float32), spec=spec))


def specs_of(module: nnx.Module) -> Nested[Any]:
    """The `ParamSpec` of every weight of `module`, as a nested dict."""
    return nnx.to_pure_dict(nnx.state(module), lambda variable: variable.get_metadata("spec"))


def with_weights[M: nnx.Module](module: M, weights: Nested[Any]) -> M:
    """A copy of `module` that holds the arrays of `weights`, which may be one rank's parts."""
    return nnx.merge(nnx.graphdef(module), weights)
