"""Adapters: trained weights beside those of a model, which are frozen. The one kind there is are the factors of LoRA.

Low-rank adaptation (arXiv:2106.09685) gives a frozen matrix W two trained factors, `x W + scale (x A) B`.

A has the inputs of W and `rank` outputs, B the reverse. Their dims have the logical axes that they have in W, so that
mesh axes split them alike, and whatever is partial in `x W` is partial in `(x A) B`: no collective is added.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from jaxpar.config.schema import Config
from jaxpar.config.schema.model import LoraConfig
from jaxpar.layers.declaration.part import Part, Term, Weights, matrix
from jaxpar.mesh.parameters import Nested, ParamSpec

Adapters = LoraConfig
"""Weights that are added to the matrices of a model."""
OFF = Adapters()
"""Nothing: all weights are trained."""
FACTORS = ("lora_a", "lora_b")
"""Ends of the names of the factors A and B of a matrix: those of `query` are `query_lora_a` and `query_lora_b`."""


def adapters_of(config: Config) -> Adapters:
    """The adapters of a configuration."""
    return config.lora


def without_adapters(config: Config) -> Config:
    """The configuration with all weights trained."""
    return replace(config, lora=OFF)


def freeze(adapters: Adapters) -> bool:
    """Whether the weights of the model are frozen."""
    return adapters.rank is not None


def why_frozen(config: Config) -> str | None:
    """The key and value by which the weights of the model are frozen; None if they are trained."""
    return f"lora.rank: {config.lora.rank}" if freeze(config.lora) else None


def adapted(part: Part, lora: Adapters) -> Part:
    """`part` with factors beside the matrices that `lora` targets, which alone are trained; itself if it is off."""
    if lora.rank is None:
        return part
    weights = {name: replace(spec, trained=False) for name, spec in part.weights.items()}
    targets, scale = targets_of(part, lora), lora.alpha / lora.rank
    for name in targets:
        weights |= _factors(name, part.weights[name], lora.rank)
    first, second = FACTORS
    terms = tuple(Term(name, f"{name}_{first}", f"{name}_{second}", scale) for name in targets)
    return replace(part, weights=Weights(weights), terms=terms)


def targets_of(part: Part, lora: LoraConfig) -> list[str]:
    """The matrices of a part that have factors."""
    if lora.rank is None:
        return []
    return [name for name in adaptable(part) if lora.targets is None or name in lora.targets]


def adaptable(part: Part) -> list[str]:
    """The matrices of a part that can have factors: not a router, which stays as it is."""
    return [name for name in part.matrix_names if part.is_factored(name) or part.weights[name].matrix]


def factors_of(part: Part, lora: LoraConfig) -> list[ParamSpec]:
    """The factors of the matrices of a part."""
    assert lora.rank is not None, "there are factors"
    rank = lora.rank
    return [spec for name in targets_of(part, lora) for spec in _factors(name, part.weights[name], rank).values()]


def is_trained(name: str, lora: LoraConfig) -> bool:
    """Whether the weight `name` of a part has gradients: all do without `lora`, and else the factors alone."""
    return lora.rank is None or name.endswith(FACTORS)


def with_frozen(specs: Nested[ParamSpec], lora: LoraConfig) -> Nested[ParamSpec]:
    """`specs` with those frozen that `lora` does not train."""
    return {
        name: with_frozen(own, lora) if isinstance(own, dict) else replace(own, trained=is_trained(name, lora))
        for name, own in specs.items()
    }


def _factors(name: str, spec: ParamSpec, rank: int) -> dict[str, ParamSpec]:
    """A is drawn as PEFT draws it, with a variance of a third of 1 / inputs; B is zero: the product starts as W's.

    Each of several stacked matrices has its own.
    """
    stack, end = spec.stack, spec.stack + spec.inputs
    own = {"inputs": spec.inputs, "scale": (3 * prod(spec.shape[stack:end])) ** -0.5}
    of_b = (*spec.shape[:stack], rank, *spec.shape[end:]), (*spec.axes[:stack], "rank", *spec.axes[end:])
    return {
        f"{name}_lora_a": matrix((*spec.shape[:end], rank), (*spec.axes[:end], "rank"), **own),
        f"{name}_lora_b": matrix(*of_b, init="zeros"),
    }
