"""The format of the layers' matmuls: whether the devices multiply in it, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import gcd, prod
from typing import NamedTuple

from jaxpar.config import Config, UserError
from jaxpar.config.checks.sizes import known
from jaxpar.config.kinds import kind_models
from jaxpar.config.plan import Choice, Plan
from jaxpar.distributed.devices import Device
from jaxpar.hardware.catalogue import GPU
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.layers.matmul_formats import (
    dense_groups,
    exact_layers,
    group_names,
    quantized_matrices,
    routed_groups,
    tensor_names,
)
from jaxpar.layout.checks.matmul import NEVER, rank_sides, rank_tokens
from jaxpar.layout.choices.hardware import hardware_of
from jaxpar.layout.choices.pipeline import holds_chunks
from jaxpar.layout.choices.reasons import choice_reasons as why_of
from jaxpar.memory.layer_shape import ExpertQuantization, layer_shapes
from jaxpar.pages.units import operations
from jaxpar.precision.grouped import TILE, grouped_backend
from jaxpar.precision.history import is_gradient
from jaxpar.precision.recipe import E4M3, E5M2, TILES, Recipe, recipe_of
from pallas_kernels.choice import Unsupported
from pallas_kernels.tiled_matmul import REGISTRY, Request

WEIGHT_GRADIENTS = "gradients of their matrices multiply what the codes stand for"
FORMATS = {E4M3: "e4m3", E5M2: "e5m2"}
FIRST_WITH_FP8 = 8.9
"""Compute capability of Ada GPUs."""


def check_matmul_units(config: Config, device: Device) -> None:
    """Raise `UserError` for FP8 on GPUs that have no units for it; CPUs emulate them."""
    recipe, hardware = config.precision.matmul, hardware_of(device)
    if recipe is None or device.platform == "cpu":
        return
    capability = hardware["compute_capability"] or 0.0
    if recipe == "mxfp8" and int(capability) != 10:
        raise UserError(
            f"precision.matmul: mxfp8 needs GPUs with units for scales of 32 numbers (compute capability 10, "
            f"Blackwell), and {hardware['gpu']} has none; expected fp8_block, fp8_current or fp8_delayed"
        )
    if capability < FIRST_WITH_FP8:
        raise UserError(
            f"precision.matmul: {recipe} needs GPUs that multiply in FP8 (Ada, Hopper and later), and "
            f"{hardware['gpu']} does not; expected null, which multiplies in precision.compute"
        )


def tiled_choice(config: Config, device: Device, *, laid_out: bool = True) -> Choice | None:
    """The implementation that multiplies operands with a scale per tile; None where there are none.

    Args:
        config: whose matmuls are meant.
        device: on which they are.
        laid_out: whether the sizes of `config.parallel` are those of the layout; without them one tile is asked for.

    Raises:
        UserError: What `precision.matmul_options.backend` names does not run on such a device.
    """
    precision = config.precision
    recipe = recipe_of(precision)
    if recipe is None or recipe.tiles is None:
        return None
    size = recipe.tiles.size  # all sides of all products are multiples of it
    products = _dense_products(config) if laid_out else ()
    m, n, k = max(products, key=_elements, default=(size, size, size))
    forms = E4M3, recipe.gradient
    request = Request(forms=forms, dtype=precision.compute, m=m, n=n, k=k, tile=size, **hardware_of(device))
    key = "precision.matmul_options.backend"
    try:
        kernel = REGISTRY.choose(precision.matmul_options.backend, request, named_by=f"{key} names")
    except Unsupported as error:
        name = precision.matmul_options.backend
        raise UserError(f"{key} is {name}, which does not run here: {error.refused[name]}; expected auto") from None
    return Choice(kernel.name, kernel.reason, kernel.rejected)


def _dense_products(config: Config) -> Iterator[tuple[int, int, int]]:
    """Rows, outputs and inputs of the products on a rank that are quantized, those of routed experts aside."""
    tokens, tensor = rank_tokens(config), known(config.parallel, "tensor")
    for model in kind_models(config.model).values():
        groups = quantized_matrices(config, model)
        for part, group in dense_groups(model):
            for name in groups.get(group.name, ()):
                inputs, outputs = rank_sides(config.parallel, part, group, name)
                yield tokens // tensor if group.between else tokens, outputs, inputs


def _elements(product: tuple[int, int, int]) -> int:
    """Elements of the largest array of a product; its gradients have the same arrays."""
    m, n, k = product
    return max(m * n, m * k, n * k)


def multiplies(config: Config, device: Device) -> str:
    """Implementation of the dense matmuls of layers: `cublas` or the name of an implementation for tiles, on GPUs; on
    CPUs and without `precision.matmul` XLA does."""
    tiled = tiled_choice(config, device)
    if tiled is not None:
        return tiled.name
    return "xla" if config.precision.matmul is None or device.platform == "cpu" else "cublas"


def routed_choice(config: Config, device: Device, plan: Plan | None = None) -> Choice | None:
    """The implementation that multiplies quantized operands of routed experts; None where none are quantized.

    Args:
        config: whose experts are meant.
        device: on which they are.
        plan: of the run, whose rows and experts of a rank may exceed what a kernel reaches; without it one tile is
            asked for.

    Raises:
        UserError: What `precision.matmul_options.backend` names does not run on such a device.
    """
    precision = config.precision
    recipe = recipe_of(precision)
    sides = _routed_sides(config)
    if recipe is None or not sides:
        return None
    # All sides of all products are multiples of it. One scale of a tensor is that of each tile, where tiles fit.
    size = gcd(TILE, *chain(*sides.values())) if recipe.tiles is None else recipe.tiles.size
    m, groups, n, k = (size, 1, size, size) if plan is None else _largest_routed(config, plan, sides)
    request = Request(
        forms=(E4M3, recipe.gradient), dtype=precision.compute, m=m, groups=groups, n=n, k=k, tile=size,
        squares=recipe.tiles is None or recipe.tiles.square, **hardware_of(device),
    )  # fmt: skip
    key, name = "precision.matmul_options.backend", precision.matmul_options.backend
    try:
        kernel = REGISTRY.choose(grouped_backend(name), request, named_by=f"{key} names")
    except Unsupported as error:
        raise UserError(
            f"{key} is {name}, which does not run here for routed experts: {error.refused[name]}; expected auto, or "
            f"{' and '.join(sorted(sides))} in precision.matmul_options.exclude"
        ) from None
    return Choice(kernel.name, kernel.reason, kernel.rejected)


def _largest_routed(config: Config, plan: Plan, sides: Mapping[str, list[int]]) -> tuple[int, int, int, int]:
    """Rows, experts, outputs and inputs of the largest product of routed experts on a rank, or of one without tiles."""
    shapes = layer_shapes(config, plan.axes, plan.microbatch_rows)
    rows = max(
        shape.routed_rows // plan.experts[kind].slices.name for kind, shape in shapes.items() if kind in plan.experts
    )
    count = max(one.experts.count for one in kind_models(config.model).values() if one.experts is not None)
    experts = count // plan.axes.expert
    pairs = [pair for each in sides.values() for pair in zip(each[::2], each[1::2], strict=True)]
    inputs, outputs = max(
        pairs, key=lambda pair: (any(side % TILE for side in pair), max(rows * max(pair), experts * prod(pair)))
    )
    return rows, experts, outputs, inputs


def expert_quantization(config: Config, device: Device) -> ExpertQuantization:
    """Matmuls of routed experts in FP8 on such a device; where a kernel is named that does not run there, as
    without it."""
    groups = tuple(_routed_sides(config))
    try:
        choice = routed_choice(config, device)
    except UserError:
        return ExpertQuantization(groups)
    kernel = choice is not None and not REGISTRY[choice.name].by_numbers
    return ExpertQuantization(groups, kernel, kernel and config.precision.matmul in TILES)


def _routed_sides(config: Config) -> dict[str, list[int]]:
    """Sides of the matrices on a rank, of all kinds, by quantized group of the routed experts."""
    sides_of: dict[str, list[int]] = {}
    for model in kind_models(config.model).values():
        groups = quantized_matrices(config, model)
        for part, group in routed_groups(model):
            for name in groups.get(group.name, ()):
                sides = list(part.weights[name].shape[1:])
                sides[group.inward] //= known(config.parallel, "tensor")
                sides_of.setdefault(group.name, []).extend(sides)
    return sides_of


def per_use_reason(recipe: str | None, optimizer_offload: str, weights_offload: str, holds: str | None) -> str | None:
    """The reason why matrices are quantized with each use under `recipe`, and not once per step; None if they are not.

    Args:
        recipe: `precision.matmul`.
        optimizer_offload: where the optimizer's state is.
        weights_offload: where the weights of layers are.
        holds: the schedule, if it gathers whole chunks that it holds for all microbatches.
    """
    if recipe in TILES and not TILES[recipe].square:
        return f"{recipe} has other codes of a matrix for each of its two sides"
    if optimizer_offload == "file":
        return "a step reads copies of the weights, and their masters are on disk (memory.optimizer_offload)"
    if weights_offload != "none":
        return "layers are fetched from the host with each use (memory.weights_offload)"
    if holds is not None:
        return f"parallel.schedule: {holds} gathers chunks of layers in the compute dtype"
    return None


def quantizes_once(plan: Plan) -> bool:
    """Whether quantized matrices become codes once per optimizer step, and are stored and gathered as these."""
    return plan.dtypes.matmul is not None and _plan_per_use_reason(plan) is None


def _plan_per_use_reason(plan: Plan) -> str | None:
    """The reason why matrices are quantized with each use and not once per step; None if they are not."""
    holds = plan.schedule if holds_chunks(plan) else None
    return per_use_reason(plan.dtypes.matmul, plan.optimizer_offload, plan.weights_offload, holds)


def matmul_rows(
    config: Config, gpu: GPU | None, plan: Plan, tiled: Choice | None = None, routed: Choice | None = None
) -> list[tuple[str, str, str]]:
    """(name, value, reason) for the table of a plan: what is multiplied in FP8, and each exception; empty without.

    Args:
        config: it is resolved.
        gpu: whose peaks are named; None where the catalogue does not have it.
        plan: of the run.
        tiled: what `tiled_choice` found.
        routed: what `routed_choice` found.
    """
    precision = config.precision
    if precision.matmul is None:
        return []
    first, last = exact_layers(config)
    names = tensor_names(config)
    matrices = [name for name in names if not is_gradient(name) and not name.endswith(".input")]
    recipe = recipe_of(precision)
    assert recipe is not None, "precision.matmul is not null"
    formats = f"inputs and weights e4m3, gradients {FORMATS[recipe.gradient]}; {_scales(config, recipe)}"
    what = f"{precision.matmul}: {', '.join(matrices)} of layers {first} to {last - 1}"
    rows = [("matmuls", what, formats)]
    each_use = _plan_per_use_reason(plan)
    once = "stored and gathered in 8 bits, 1 byte a number; from the master weights"
    rows.append(("FP8 weights", "quantized with each use" if each_use else "quantized once per step", each_use or once))
    if tiled is not None:
        rows.append(("matmuls of tiles", tiled.name, why_of(tiled)))
    if routed is not None:
        only = "" if recipe.tiles is not None else f"; {WEIGHT_GRADIENTS}"
        rows.append(("codes of routed experts", routed.name, why_of(routed) + only))
    rows += [(f"matmuls, {precision.compute}", one.what, one.why) for one in exempt(config)]
    if gpu is not None and gpu.eight_bit_peak is not None:
        peaks = f"{operations(gpu.training_peak)}/s in bfloat16, {operations(gpu.eight_bit_peak)}/s in FP8"
        rows.append(("peaks", peaks, "of a GPU, dense; MFU is a share of the first"))
    return rows


def _scales(config: Config, recipe: Recipe) -> str:
    """A phrase that says which elements share a scale, and where the scale comes from."""
    if recipe.tiles is not None:
        size = recipe.tiles.size
        return f"a scale for {size} numbers" + (f", of weights for {size} x {size}" if recipe.tiles.square else "")
    if recipe.from_history:
        return f"a scale per tensor by the maximum of the last {config.precision.matmul_options.history} steps"
    of_rows = ", of each row of routed experts" if _routed_sides(config) else ""
    return f"a scale per tensor by the maximum of the tensor{of_rows}"


class Exempt(NamedTuple):
    """Products that stay in the compute dtype."""

    what: str
    why: str


def exempt(config: Config) -> list[Exempt]:
    """Groups and layers that stay in the compute dtype under the recipe of `config`, each with the reason."""
    precision, models = config.precision, kind_models(config.model).values()
    excepted, layers = precision.matmul_options, config.model.layers
    exempt_parts = [Exempt("head", NEVER["head"])]
    if any(one.experts is not None for one in models):
        exempt_parts.append(Exempt("router", NEVER["router"]))
    named = [name for name in group_names(config.model) if name in excepted.exclude]
    exempt_parts += [Exempt(name, "precision.matmul_options.exclude") for name in named]
    first, last = exact_layers(config)
    ranges = [f"0 to {first - 1}"] if first else []
    ranges += [f"{last} to {layers - 1}"] if last < layers else []
    if ranges:
        what = "first_layers and last_layers" if len(ranges) == 2 else "first_layers" if first else "last_layers"
        exempt_parts.append(Exempt(f"layers {' and '.join(ranges)}", f"precision.matmul_options: {what}"))
    if frozen_by := adaptation_of(config).frozen_by:
        exempt_parts.append(Exempt("the adapters' factors", f"too few columns to gain ({frozen_by})"))
    if config.model.low_rank:
        exempt_parts.append(Exempt("factors of model.low_rank", "products of two are not quantized"))
    return exempt_parts
