"""The stacked matrices of a layout that become codes once per step."""

from __future__ import annotations

from math import prod
from typing import Any

from flax.traverse_util import flatten_dict

from jaxpar.config import Config
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Plan
from jaxpar.layers.matmul_formats import are_exact, dense_groups, quantized_matrices, routed_groups, tensor_columns
from jaxpar.mesh.layer_order import LAYERS, LayerOrder
from jaxpar.mesh.parameters import ParamSpec
from jaxpar.mesh.placements import Placements, added_dim, local_shape
from jaxpar.precision.quantized_weights import QuantizedMatrix
from jaxpar.precision.recipe import recipe_of
from jaxpar.precision.squares import Squares, full_rows, squares_of


def once_quantized_matrices(
    config: Config, plan: Plan, placements: Placements, order: LayerOrder
) -> tuple[QuantizedMatrix, ...]:
    """The matrices that are quantized once per step, where `quantizes_once`."""
    matrices = []
    for kind, model in kind_models(config.model).items():
        groups, stack = quantized_matrices(config, model), order.stacks[kind]
        quantized = tuple(are_exact(config, layers) is False for layers in stack.layers_of_rows)
        if not any(quantized):
            continue
        columns = tensor_columns(config, groups)
        for part, group in (*dense_groups(model), *routed_groups(model)):
            for column, name in zip(columns.get(group.name, ())[1:], groups.get(group.name, ()), strict=False):
                path = (LAYERS, kind, part.name, name)
                squares = _squares(config, plan, placements, path, part.weights[name].stacked(stack.rows))
                matrices.append(QuantizedMatrix(path, column, quantized, stack, kind, group.name, squares))
    return tuple(matrices)


def _squares(config: Config, plan: Plan, placements: Placements, path: tuple[str, ...], spec: ParamSpec) -> Squares:
    """The parts of a stacked matrix with scales, as its master weights are placed."""
    recipe, sizes = recipe_of(config.precision), plan.axes
    layouts: list[dict[tuple[str, ...], Any]]
    layouts = [flatten_dict(role.layout) for role in (placements.compute, placements.optimizer)]
    compute, optimizer = (layout[path] for layout in layouts)
    shape = local_shape(spec.shape, optimizer, sizes)
    if recipe is None or recipe.tiles is None:
        return full_rows(shape)
    added = added_dim(compute, optimizer)
    ranks = prod(getattr(sizes, axis) for axis in added[1]) if added else 1
    return squares_of(recipe.tiles.size, shape, spec.stack, spec.inputs, added, ranks)
