"""Matrices of layers that are products of two, `x @ a @ b` (`model.low_rank`), as in Greenformers (arXiv:2108.10808).

`a` has the inputs of the matrix and `rank` outputs, `b` the reverse. Their dims have the logical axes that they have in
the matrix, so mesh axes split them alike: into a part, tensor ranks hold all of `a` and their columns of `b`; out of
it, their rows of `a` and all of `b`, whose products are summed as those of the matrix would be. No collective is
added. The factor that is whole on every tensor rank multiplies on each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from jaxpar.layers.declaration.part import Weights, factor_names, matrix
from jaxpar.mesh.parameters import ParamSpec


def factored(weights: Mapping[str, ParamSpec], ranks: Mapping[str, int]) -> Weights:
    """`weights` with two factors in place of each matrix that `ranks` names; names of other parts are ignored."""
    found: dict[str, ParamSpec] = {}
    for name, spec in weights.items():
        found |= factors(name, spec, ranks[name]) if name in ranks else {name: spec}
    return Weights(found)


def factors(name: str, spec: ParamSpec, rank: int) -> dict[str, ParamSpec]:
    """The two factors of a matrix, by name.

    Their product has initial values with the standard deviation of the matrix's. Both factors have the same Frobenius
    norm, as those of a singular value decomposition have: then they learn at one speed.
    """
    inputs, outputs = (prod(dims) for dims in (spec.shape[: spec.inputs], spec.shape[spec.inputs :]))
    scale = lambda own, other: spec.scale**0.5 * (other / (own * rank)) ** 0.25
    a, b = factor_names(name)
    return {
        a: matrix(
            (*spec.shape[: spec.inputs], rank), (*spec.axes[: spec.inputs], "rank"), inputs=spec.inputs,
            scale=scale(inputs, outputs),
        ),
        b: matrix(
            (rank, *spec.shape[spec.inputs :]), ("rank", *spec.axes[spec.inputs :]), scale=scale(outputs, inputs)
        ),
    }  # fmt: skip


def saving_rank(spec: ParamSpec) -> int:
    """The largest rank at which the two factors of a matrix have fewer weights than it; 0 if there is none."""
    inputs = prod(spec.shape[: spec.inputs])
    outputs = spec.size // inputs
    return (spec.size - 1) // (inputs + outputs)
