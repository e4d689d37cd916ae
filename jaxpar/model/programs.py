"""The ops of a layer's programs: composed here from configuration and plan, so that a decoder names no number format.

Layers of a kind that share a row of a chunk run one program. Its key is opaque outside this file; None is the program
without any feature.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from jaxpar.config.kinds import kind_model
from jaxpar.config.plan import Plan
from jaxpar.config.schema import Config
from jaxpar.layers.declared import declare_feed_forward, elementwise_groups
from jaxpar.layers.matmul_formats import quantised_groups
from jaxpar.layers.ops.plain import Ops
from jaxpar.layers.ops.quantised import quantised_ops
from jaxpar.precision.recipe import TILES, QuantisedGroups


def program_of(config: Config, kind: str, layers: Collection[int]) -> Hashable:
    """The program of layers of a kind with such numbers in the model, which share a row of a chunk."""
    return quantised_groups(config, kind, layers)


def ops_of(config: Config, plan: Plan, kind: str, program: Hashable) -> Ops:
    """The ops of a program of the layers of a kind."""
    if not isinstance(program, QuantisedGroups):
        return Ops(plan.tensor_overlap)
    model = kind_model(config.model, kind)
    return quantised_ops(program, plan.tensor_overlap, declare_feed_forward(model), elementwise_groups(model))


def has_wide_gradients(config: Config) -> bool:
    """Whether ops leave gradients of matrices in the dtype of the matrices they get, where that is wider than compute:
    products of tiles make theirs in compute dtype, and of matrices with adapters nothing accumulates."""
    return config.precision.matmul not in TILES and config.lora.rank is None
