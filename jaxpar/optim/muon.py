"""Muon: momentum, made orthogonal matrix by matrix (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxpar.config.mappings.optimizers import MuonOptions
from jaxpar.mesh.matrices import gather_matrices, scatter_matrices
from jaxpar.optim.adamw import adamw
from jaxpar.optim.rule import Rule, RuleRequest

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


def muon(request: RuleRequest) -> Rule:
    """Muon for one stacked weight `[layers, inputs..., outputs...]`, or of more stacked dims. Other weights, which are
    no matrices of a layer, have AdamW.

    Nesterov momentum M = mu M + g, u = g + mu M, is elementwise on the shard. Newton-Schulz needs whole matrices
    `[prod(inputs), prod(outputs)]`: the ranks that share the weight exchange layers for dims (in `request.dtype`), each
    works on its share of the layers, and the results go back. Ranks that hold copies of the weight repeat the same
    work. The direction is scaled by sqrt(max(1, outputs / inputs)).
    """
    spec, layout, dtype = request.spec, request.layout, request.dtype
    if not spec.matrix:
        return adamw(request)
    iterations = request.options(MuonOptions).iterations
    shape = spec.shape[spec.stack :]
    inputs, outputs = prod(shape[: spec.inputs]), prod(shape[spec.inputs :])
    scale = max(1.0, outputs / inputs) ** 0.5

    def direction(gradient, weight, state, step, arguments):
        share = arguments.options["momentum"].value
        momentum = share * state["mu"] + gradient
        update = gradient + share * momentum
        full = gather_matrices(update.astype(dtype), layout, spec.stack)
        assert full.shape[1:] == shape, f"matrices of {full.shape[1:]} where {spec} was declared"
        matrices = newton_schulz(full.reshape(-1, inputs, outputs), iterations, dtype)
        back = scatter_matrices(matrices.reshape(full.shape).astype(dtype), layout, update.shape[: spec.stack])
        return scale * back.astype(jnp.float32), {"mu": momentum}

    small, large = sorted((inputs, outputs))
    return Rule(
        state={"mu": request.like_weight(signed=True)},
        direction=direction,
        granularity="matrix",
        rate=lambda arguments: arguments.matrix_learning_rate,
        matmuls=(
            (iterations, small, small, large),
            (iterations, small, small, small),
            (iterations, small, large, small),
        ),
    )
