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
from jaxpar.optim.rule import Rule

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan's quintic: steep at 0, so that five iterations bring singular values to about 0.7 to 1.2."""


def newton_schulz(
    x: Float[Array, "batch rows columns"], iterations: int, dtype: DTypeLike = jnp.float32
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


def muon(config: OptimizerConfig, spec: ParamSpec, layout: PartitionSpec, dtype: DTypeLike = jnp.float32) -> Rule:
    """Muon for one stacked weight `[layers, inputs..., outputs...]` sharded as `layout`.

    Nesterov momentum M = mu M + g, u = g + mu M, is elementwise on the shard. Newton-Schulz needs whole matrices
    `[prod(inputs), prod(outputs)]`: the ranks that share the weight exchange layers for dims (in `dtype`), each works
    on its share of the layers, and the results go back. Ranks that hold copies of the weight repeat the same work. The
    direction is scaled by sqrt(max(1, outputs / inputs)).
    """
    assert spec.matrix and spec.axes[0] == "layers", f"Muon is for matrices stacked over layers, not {spec}"
    inputs, outputs = (prod(spec.shape[1 : 1 + spec.inputs]), prod(spec.shape[1 + spec.inputs :]))
    scale = max(1.0, outputs / inputs) ** 0.5

    def direction(gradient, weight, mu, nu, step):
        momentum = config.muon_momentum * mu + gradient
        update = gradient + config.muon_momentum * momentum
        whole = gather_matrices(update.astype(dtype), layout)
        assert whole.shape[1:] == spec.shape[1:], f"matrices of {whole.shape[1:]} where {spec} was declared"
        matrices = newton_schulz(whole.reshape(-1, inputs, outputs), config.muon_iterations, dtype)
        back = scatter_matrices(matrices.reshape(whole.shape).astype(dtype), layout, update.shape[0])
        return scale * back.astype(jnp.float32), momentum, nu

    return Rule(peak=config.muon_learning_rate, mu=True, nu=None, direction=direction)
