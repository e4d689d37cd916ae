"""Matrices of layers that are products of two, `x @ a @ b` (`model.low_rank`), as in Greenformers (arXiv:2108.10808).

`a` has the inputs of the matrix and `rank` outputs, `b` the reverse. Their dims have the logical axes that they have in
the matrix, so mesh axes split them alike: into a part, tensor ranks hold all of `a` and their columns of `b`; out of
it, their rows of `a` and all of `b`, whose products are summed as those of the matrix would be. No collective is
added. The factor that is whole on every tensor rank multiplies on each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from jaxpar.layers.declaration.part import Weights, factor_names, matrix
from jaxpar.mesh.parameters import ParamSpec


def factored(weights: Mapping[str, ParamSpec], ranks: Mapping[str, int]) -> Weights:
    """`weights` with two factors in place of each matrix that `ranks` names; names of other parts are ignored.

    Their product has initial values with the standard deviation of the matrix's. Both factors have the same Frobenius
    norm, as those of a singular value decomposition have: then they learn at one speed.
    """
    factors: dict[str, ParamSpec] = {}
    for name, spec in weights.items():
        if name not in ranks:
            factors[name] = spec
            continue
        rank, inputs = ranks[name], prod(spec.shape[: spec.inputs])
        outputs = spec.size // inputs
        a = spec.scale**0.5 * (outputs / (inputs * rank)) ** 0.25
        b = spec.scale**0.5 * (inputs / (outputs * rank)) ** 0.25
        factors |= factor_pair(factor_names(name), spec, rank, {"scale": a}, {"scale": b})
    return Weights(factors)


def factor_pair(
    names: tuple[str, str], spec: ParamSpec, rank: int, first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, ParamSpec]:
    """Two factors by name, [inputs, rank] and [rank, outputs], of each matrix that is stacked in `spec`; `first` and
    `second` are the other fields of their specs."""
    stack, end = spec.stack, spec.stack + spec.inputs
    outward = (*spec.shape[:stack], rank, *spec.shape[end:]), (*spec.axes[:stack], "rank", *spec.axes[end:])
    return {
        names[0]: matrix((*spec.shape[:end], rank), (*spec.axes[:end], "rank"), inputs=spec.inputs, **first),
        names[1]: matrix(*outward, **second),
    }
