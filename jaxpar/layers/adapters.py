"""Adapters: trained weights beside those of a model, which are frozen. The only kind is the factors of LoRA.

Low-rank adaptation (arXiv:2106.09685) gives a frozen matrix W two trained factors, `x W + scale (x A) B`.

A has the inputs of W and `rank` outputs, B the reverse. Their dims have the logical axes that they have in W, so that
mesh axes split them alike, and whatever is partial in `x W` is partial in `(x A) B`: no collective is added.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from jaxpar.layers.declaration.adaptation import Adaptation, Adapters, AdapterStack
from jaxpar.layers.declaration.low_rank import factor_pair
from jaxpar.layers.declaration.part import Part, Term, Weights
from jaxpar.mesh.parameters import ADAPTERS, Nested, ParamSpec

FACTORS = ("lora_a", "lora_b")
"""Suffixes of the names of the factors A and B of a matrix: `query_lora_a` and `query_lora_b` of `query`."""


class LowRank(Adaptation):
    """Factors beside frozen matrices."""

    def __init__(self, lora: Adapters):
        self.lora, self.frozen_by = lora, f"lora.rank: {lora.rank}"

    def part(self, part: Part) -> Part:
        return adapted(part, self.lora)

    def specs(self, specs: Nested[ParamSpec]) -> Nested[ParamSpec]:
        return with_frozen(specs)


def adapted(part: Part, lora: Adapters) -> Part:
    """`part` with factors beside the matrices that `lora` targets, which alone are trained; itself if it is off."""
    if lora.rank is None:
        return part
    weights = {name: replace(spec, trained=False) for name, spec in part.weights.items()}
    targets, scale = targets_of(part, lora), lora.alpha / lora.rank
    for name in targets:
        factors = _factors(name, part.weights[name], lora.rank)
        if isinstance(lora, AdapterStack):
            factors = {key: _side_by_side(spec, lora.size) for key, spec in factors.items()}
        weights |= factors
    terms = tuple(Term(name, *_names(name), scale) for name in targets)
    return replace(part, weights=Weights(weights), terms=terms)


def targets_of(part: Part, lora: Adapters) -> list[str]:
    """The matrices of a part that have factors."""
    if lora.rank is None:
        return []
    return [name for name in adaptable(part) if lora.targets is None or name in lora.targets]


def adaptable(part: Part) -> list[str]:
    """The matrices of a part that can have factors: none of a router or another exact group, which stay as they are,
    and none that is a product of two."""
    names = [name for group in part.groups if not group.exact for name in group.weights]
    return [name for name in names if not part.is_factored(name) and part.weights[name].matrix]


def factors_of(part: Part, lora: Adapters) -> list[ParamSpec]:
    """The factors of the matrices of a part."""
    weights = adapted(part, lora).weights
    return [weights[factor] for name in targets_of(part, lora) for factor in _names(name)]


def with_frozen(specs: Nested[ParamSpec]) -> Nested[ParamSpec]:
    """`specs` with all but factors frozen."""
    return {
        name: with_frozen(spec) if isinstance(spec, dict) else replace(spec, trained=name.endswith(FACTORS))
        for name, spec in specs.items()
    }


def _names(matrix: str) -> tuple[str, str]:
    return f"{matrix}_{FACTORS[0]}", f"{matrix}_{FACTORS[1]}"


def _side_by_side(spec: ParamSpec, adapters: int) -> ParamSpec:
    """The factor of several adapters in one array; those of a routed expert are beside each other."""
    stack = spec.stack
    shape, axes = (
        (*spec.shape[:stack], adapters, *spec.shape[stack:]),
        (*spec.axes[:stack], ADAPTERS, *spec.axes[stack:]),
    )
    return replace(spec, shape=shape, axes=axes)


def _factors(name: str, spec: ParamSpec, rank: int) -> dict[str, ParamSpec]:
    """A is drawn as PEFT draws it, with a variance of a third of 1 / inputs; B is zero: the product starts as W's."""
    inputs = prod(spec.shape[spec.stack : spec.stack + spec.inputs])
    return factor_pair(_names(name), spec, rank, {"scale": (3 * inputs) ** -0.5}, {"init": "zeros"})
