"""Checks of quantized matmuls that need the layers' matrices. All raise `UserError`."""

from __future__ import annotations

from math import prod

from jaxpar.config.axes import BATCH_AXES
from jaxpar.config.checks.sizes import known
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import Config, ParallelConfig
from jaxpar.layers.declaration.part import Matmuls, Part
from jaxpar.layers.matmul_formats import (
    dense_groups,
    group_names,
    quantized_matrices,
    routed_groups,
    tensor_names,
)
from jaxpar.layout.checks.experts import check_expert_ranks
from jaxpar.layout.checks.model import check_known
from jaxpar.precision.recipe import TILES

MULTIPLE = 16
"""The unit of the sizes of a quantized matmul: 16 bytes of a row (cuBLAS documentation, cublasLtMatmul)."""


NEVER = {
    "head": "its rounding would reach every logit, and it is a small share of the FLOPs",
    "router": "its rounding would change which experts a token uses",
}
"""Products that are not quantized under any recipe, each with the reason."""


def check_exceptions(config: Config) -> None:
    """Refuse `precision.matmul_options.exclude` that are no group of matmuls of the model's layers."""
    parts, usual = config.precision.matmul_options.exclude, type(config.precision.matmul_options)().exclude
    groups = tuple(dict.fromkeys((*group_names(config.model), *NEVER, *usual)))
    for name in parts:
        check_known("precision.matmul_options.exclude", name, groups, "group of matmuls")
    recipe = config.precision.matmul
    if recipe and not tensor_names(config):
        raise UserError(
            f"precision.matmul_options.exclude: {', '.join(parts)} leave no matmul to precision.matmul: {recipe}; "
            "expected fewer, or precision.matmul: null"
        )


def check_ranks(config: Config) -> None:
    """Refuse experts and quantized matmuls that the ranks of the layout do not divide."""
    check_expert_ranks(config)
    check_multiples(config)


def check_multiples(config: Config) -> None:
    """Refuse matmuls that 8-bit units cannot run: the three sizes of each are multiples of 16 on every rank, or of the
    tiles that have a scale."""
    recipe, parallel = config.precision.matmul, config.parallel
    if recipe is None:
        return
    if recipe in TILES:
        check_parts(config, TILES[recipe].size)
    multiple = TILES[recipe].size if recipe in TILES else MULTIPLE
    tokens = rank_tokens(config)
    otherwise = f"or precision.matmul: null instead of {recipe}"
    if tokens % multiple:
        raise UserError(
            f"data.batch_size x data.sequence_length: {tokens} tokens on each rank in a microbatch are no multiple of "
            f"{multiple}, which quantized matmuls need; expected longer sequences or fewer ranks, {otherwise}"
        )
    tensor = known(parallel, "tensor")
    for model in kind_models(config.model).values():
        groups = quantized_matrices(config, model)
        for part, group in (*dense_groups(model), *routed_groups(model)):
            if group.between and group.name in groups and tokens // tensor % MULTIPLE:
                raise UserError(
                    f"precision.matmul: {recipe} needs multiples of {MULTIPLE} tokens on each rank, and {group.name} "
                    f"has {tokens // tensor} with parallel.tensor: {tensor}; expected longer sequences or fewer ranks, "
                    f"{group.name} in precision.matmul_options.exclude, {otherwise}"
                )
            for name in groups.get(group.name, ()):
                sides = rank_sides(parallel, part, group, name)
                if any(side % multiple for side in sides):
                    raise UserError(
                        f"precision.matmul: {recipe} needs sizes that are multiples of {multiple} on each rank, and "
                        f"matrix {name} is {sides[0]} x {sides[1]} with parallel.tensor: {tensor}; expected less of "
                        f"it, {group.name} in precision.matmul_options.exclude, {otherwise}"
                    )


def check_parts(config: Config, tile: int) -> None:
    """Refuse parts of rows in which tiles of tokens are incomplete, or other tokens than on one device."""
    recipe, parallel, length = config.precision.matmul, config.parallel, config.data.sequence_length
    context, tensor = known(parallel, "context"), known(parallel, "tensor")
    if context > 1 and parallel.context_order == "striped":
        raise UserError(
            f"parallel.context_order: striped separates the {tile} neighbouring tokens that share a scale under "
            f"precision.matmul: {recipe}; expected zigzag or contiguous, or a recipe without tiles"
        )
    pieces = max(context * tensor, 2 * context if context > 1 else 1)
    if length % (pieces * tile):
        raise UserError(
            f"precision.matmul: {recipe} scales {tile} neighbouring tokens together, and data.sequence_length: "
            f"{length} in {pieces} parts (parallel.context: {context}, parallel.tensor: {tensor}) leaves parts that "
            f"are no multiple of {tile}; expected a multiple of {pieces * tile}, fewer ranks, or a recipe without tiles"
        )


def rank_tokens(config: Config) -> int:
    """Tokens of a microbatch on a rank, the parts of the tensor ranks joined."""
    ranks = known(config.parallel, *BATCH_AXES, "context")
    return config.data.batch_size * config.data.sequence_length // (ranks * config.parallel.microbatches)


def rank_sides(parallel: ParallelConfig, part: Part, group: Matmuls, name: str) -> list[int]:
    """Inputs and outputs of a group's matrix on a rank; of routed experts, those of one."""
    spec, tensor = part.weights[name], known(parallel, "tensor")
    shape = spec.shape[spec.stack :]
    sides = [prod(shape[: spec.inputs]), prod(shape[spec.inputs :])]
    heads = spec.shape[spec.axes.index("kv_heads")] if "kv_heads" in spec.axes else tensor
    sides[group.inward] //= 1 if group.between else min(tensor, heads)
    return sides
