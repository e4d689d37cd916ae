"""All checks of a configuration, including those that need the weights of its layers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from jaxpar.config.axes import AXES
from jaxpar.config.bounds import PARAMETERS, WIDTH
from jaxpar.config.checks.sizes import known
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.spelling import did_you_mean, one_of, quoted
from jaxpar.config.validate import VOCAB, became_known
from jaxpar.config.validate import validate as validate_keys
from jaxpar.layers.adapter_checks import check_adapters, check_targets
from jaxpar.layers.counting import parameter_count
from jaxpar.layers.declared import declare_layer, feed_forward_class, mixer_class
from jaxpar.layers.experts.checks import check_expert_ranks, check_experts
from jaxpar.layers.feed_forward.gated import Gated
from jaxpar.layers.feed_forward.plain import Plain
from jaxpar.layers.inputs.input import TIED, input_class, refuse_without_batches
from jaxpar.layers.matmul_formats import (
    NEVER,
    dense_groups,
    group_names,
    quantised,
    rank_sides,
    rank_tokens,
    routed_groups,
    tensor_names,
)
from jaxpar.precision.recipe import TILES

MULTIPLE = 16
"""The unit of the sizes of a quantised matmul: 16 bytes of a row (cuBLAS documentation, cublasLtMatmul)."""


def validate(config: Config, since: Config | None = None) -> None:
    """`jaxpar.config.validate.validate`, and a check that the model is not larger than any machine can hold.

    Raises:
        UserError: the first thing that is wrong, in one sentence.
    """
    validate_keys(config, since)
    if since is None:
        check_adapters(config)
        check_experts(config)
        check_input(config)
        check_blocks(config.model)
        check_low_rank(config.model)
    if since is None or VOCAB in became_known(since, config):
        check_parameters(config.model)
    if since is None:
        check_targets(config)
        check_exceptions(config)
    if since is None or not became_known(since, config).isdisjoint(AXES):
        check_expert_ranks(config)
        check_multiples(config)


def check_input(config: Config) -> None:
    """Refuse models and tasks that the input does not support. Raises `UserError`."""
    model = replace(config.model, vocab=config.model.vocab or 1)
    kind = input_class(model)
    kind.check(model)
    weights, name = kind.declare(model), f"model.input: {model.input} has no table of"
    if not weights:
        raise UserError(f"model.input: {model.input} declares no weights; expected one at least, as a projection has")
    if model.tied and TIED not in weights:
        raise UserError(f"model.tied: true, and {name} tokens for the head to share; expected false")
    if model.embedding_scale and TIED not in weights:
        raise UserError(f"model.embedding_scale: true, and {name} tokens; expected false")
    if model.position == "learned" and "positions" not in weights:
        raise UserError(f"model.position: learned, and {name} positions; expected rope or none")
    if config.evaluation.sample_tokens:
        refuse_without_batches(model, f"a sample (evaluation.sample_tokens: {config.evaluation.sample_tokens})")


def check_blocks(model: ModelConfig) -> None:
    """Refuse models that a mixer cannot be of, and experts of a feed-forward without a non-linearity, which they
    compute. Raises `UserError`."""
    for own in kind_models(model).values():
        mixer_class(own).check(own)
        if own.experts is not None and not issubclass(feed_forward_class(own), (Gated, Plain)):
            raise UserError(
                f"model.activation: {own.activation} is no subclass of {Gated.__name__} or {Plain.__name__}, whose "
                "non-linearity experts compute; expected one that is, or model.experts: null"
            )


def check_low_rank(model: ModelConfig) -> None:
    """Refuse `model.low_rank` of what is no matrix of a layer, or of a rank that the matrix cannot have.

    Raises:
        UserError: see above.
    """
    whole = [declare_layer(replace(own, low_rank={})) for own in kind_models(model).values()]
    most: dict[str, int] = {}
    for part in (part for layer in whole for part in layer.parts):
        for name, spec in zip(part.matrix_names, part.matrices, strict=True):
            inputs = prod(spec.shape[: spec.inputs])
            most[name] = min(inputs, spec.size // inputs, most.get(name, WIDTH))
    for name, rank in model.low_rank.items():
        if name not in most:
            raise UserError(
                f"model.low_rank: {quoted(name, 80)} is no matrix of this model's layers"
                f"{did_you_mean(name, most) or f'; there are {one_of(most)}'}"
            )
        if not 1 <= rank <= most[name]:
            raise UserError(
                f"model.low_rank.{name}: expected a rank from 1 to {most[name]}, the matrix's smaller side, got {rank}"
            )


def check_exceptions(config: Config) -> None:
    """Refuse `precision.matmul_options.exclude` that are no group of matmuls of the model's layers.

    Raises:
        UserError: see above.
    """
    parts, usual = config.precision.matmul_options.exclude, type(config.precision.matmul_options)().exclude
    known = tuple(dict.fromkeys((*group_names(config.model), *NEVER, *usual)))
    for name in parts:
        if name not in known:
            raise UserError(
                f"precision.matmul_options.exclude: {quoted(name, 80)} is no group of matmuls of this model's layers"
                f"{did_you_mean(name, known) or f'; there are {one_of(known)}'}"
            )
    recipe = config.precision.matmul
    if recipe and not tensor_names(config):
        raise UserError(
            f"precision.matmul_options.exclude: {', '.join(parts)} leave no matmul to precision.matmul: {recipe}; "
            "expected fewer, or precision.matmul: null"
        )


def check_multiples(config: Config) -> None:
    """Refuse matmuls that 8-bit units cannot run: the three sizes of each are multiples of 16 on every rank, or of the
    tiles that have a scale.

    Raises:
        UserError: see above.
    """
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
            f"{multiple}, which quantised matmuls need; expected longer sequences or fewer ranks, {otherwise}"
        )
    tensor = known(parallel, "tensor")
    for model in kind_models(config.model).values():
        groups = quantised(config, model)
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
    """Refuse parts of rows in which tiles of tokens are not whole, or not the same tokens as on one device.

    Raises:
        UserError: see above.
    """
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


def check_parameters(model: ModelConfig) -> None:
    """Refuse sizes that are each in range but make a model that no machine can hold, before anything is built.

    Raises:
        UserError: there are more parameters than `PARAMETERS`.
    """
    weights = parameter_count(replace(model, vocab=model.vocab or 1), padded=True)
    if weights > PARAMETERS:
        sizes = ", ".join(f"{key} {getattr(model, key)}" for key in ("layers", "embed", "mlp", "heads", "vocab"))
        raise UserError(f"model: {sizes} make {weights:.2g} parameters; expected at most {PARAMETERS:.0e}")
