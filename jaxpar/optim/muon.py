"""Muon: momentum, made orthogonal matrix by matrix (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxpar.config.schema import OptimizerConfig
from jaxpar.mesh.matrices import gather_matrices, scatter_matrices
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.rules import axes_of_dim
from jaxpar.optim.rule import Rule

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan's quintic: steep at 0, so that five iterations bring singular values to about 0.7 to 1.2."""


def newton_schulz(
    x: Float[Array, "batch rows columns"], iterations: int, dtype: DTypeLike
) -> Float[Array, "batch rows columns"]:
    """The nearest semi-orthogonal matrices, roughly: singular values of `x` go towards 1, its singular vectors stay.

    Matmuls run in `dtype`, the result is float32. The Gram matrix is over the smaller dim. FLOPs per matrix and
    iteration, with s the smaller dim and l the larger: 4 l s^2 + 2 s^3.
    """
    a, b, c = QUINTIC
    x = x.astype(jnp.float32)
    x = (x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + 1e-7)).astype(dtype)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x

    def iterate(_, x):
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x

    x = lax.fori_loop(0, iterations, iterate, x)
    return (x.mT if tall else x).astype(jnp.float32)


def muon(config: OptimizerConfig, spec: ParamSpec, layout: PartitionSpec, dtype: DTypeLike) -> Rule:
    """Muon for one stacked weight `[layers, inputs..., outputs...]` sharded as `layout`; experts are stacked too.

    Nesterov momentum M = mu M + g, u = g + mu M, is elementwise on the shard. Newton-Schulz needs whole matrices
    `[prod(inputs), prod(outputs)]`: the ranks that share the weight exchange layers for dims (in `dtype`), each works
    on its share of the layers, and the results go back. Ranks that hold copies of the weight repeat the same work. The
    direction is scaled by sqrt(max(1, outputs / inputs)).
    """
    assert spec.matrix and spec.axes[0] == "layers", f"Muon is for matrices stacked over layers, not {spec}"
    shape = spec.shape[spec.stack :]
    inputs, outputs = prod(shape[: spec.inputs]), prod(shape[spec.inputs :])
    # Layers and experts are one dim, of which the ranks of the axes that split it have their own.
    own = tuple(axis for dim in range(spec.stack) for axis in axes_of_dim(layout, dim))
    together = PartitionSpec(own or None, *layout[spec.stack :])
    scale = max(1.0, outputs / inputs) ** 0.5

    def direction(gradient, weight, mu, nu, step, arguments):
        momentum = arguments.muon_momentum * mu + gradient
        update = gradient + arguments.muon_momentum * momentum
        flat = update.reshape(-1, *update.shape[spec.stack :])
        whole = gather_matrices(flat.astype(dtype), together)
        assert whole.shape[1:] == shape, f"matrices of {whole.shape[1:]} where {spec} was declared"
        matrices = newton_schulz(whole.reshape(-1, inputs, outputs), config.muon_iterations, dtype)
        back = scatter_matrices(matrices.reshape(whole.shape).astype(dtype), together, flat.shape[0])
        return scale * back.reshape(update.shape).astype(jnp.float32), momentum, nu

    return Rule(mu=True, nu=None, direction=direction, rate=lambda arguments: arguments.muon_learning_rate)
