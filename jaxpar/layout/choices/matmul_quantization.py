"""Quantized matmuls of a configuration under a layout, for the time model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxpar.config import Config, UserError
from jaxpar.config.kinds import kind_models
from jaxpar.cost.matmul_quantization import (
    DECODED_SQUARES,
    EACH_USE,
    OF_TILES,
    STORED,
    STORED_SQUARES,
    MatmulQuantization,
    Passes,
)
from jaxpar.hardware.catalogue import GPU
from jaxpar.hardware.described import DescribedGPU
from jaxpar.layers.matmul_formats import dense_groups, exact_layers, quantized_matrices
from jaxpar.layout.choices.matmul import per_use_reason, tiled_choice
from jaxpar.precision.recipe import Recipe, recipe_of


def matmul_quantization(
    config: Config, gpu: GPU, optimizer_offload: str, holds: str | None, slots: Sequence[str], chunks: int,
    weights_offload: str = "none",
) -> MatmulQuantization | None:  # fmt: skip
    """Quantization of the layers' matmuls; None without `precision.matmul`.

    Args:
        config: the configuration; its `parallel` and `memory` are not used.
        gpu: the GPU that multiplies.
        optimizer_offload: placement of the optimizer's state.
        holds: the schedule, if it gathers full chunks once for all microbatches.
        slots: kind of each slot of a chunk.
        chunks: number of chunks of the model.
        weights_offload: placement of the layers' weights; a planned layout has them on the device.
    """
    recipe, precision = recipe_of(config.precision), config.precision
    if recipe is None:
        return None
    once = per_use_reason(precision.matmul, optimizer_offload, weights_offload, holds) is None
    multiplied = _multiplies_quantized(config, gpu)
    first, last = exact_layers(config)
    layers = config.model.layers
    rows = chunks * quantized_rows(config, slots).total()
    return MatmulQuantization(
        groups=_dense(config),
        passes=_passes(recipe, once=once, multiplied=multiplied),
        multiplied=multiplied,
        tile=None if recipe.tiles is None else recipe.tiles.size,
        measures_amax=recipe.tiles is None and not recipe.from_history,
        once=once,
        stored=min(1.0, rows / max(1, last - first)) if once else 0.0,
        exact=(first, layers - last),
        layers=layers,
    )


def quantized_rows(config: Config, slots: Sequence[str]) -> Counter[str]:
    """Number of slots, by kind, whose layers are quantized in every chunk: matrices of these are stored in 8 bits.
    `slots` are the kinds of a chunk's layers, in order."""
    excepted = config.precision.matmul_options
    return Counter(slots[excepted.first_layers : max(0, len(slots) - excepted.last_layers)])


def _passes(recipe: Recipe, *, once: bool, multiplied: bool) -> Passes:
    """The passes of operands under a recipe; `once` is whether matrices are quantized once per step."""
    if recipe.tiles is None:
        return STORED if once else EACH_USE
    if not once:
        return OF_TILES
    return STORED_SQUARES if multiplied else DECODED_SQUARES


def _dense(config: Config) -> tuple[str, ...]:
    """The groups that are quantized, of all kinds of layers, but routed ones."""
    models = kind_models(config.model).values()
    each = ((quantized_matrices(config, model), group.name) for model in models for _, group in dense_groups(model))
    return tuple(dict.fromkeys(name for names, name in each if name in names))


def _multiplies_quantized(config: Config, gpu: GPU) -> bool:
    """Whether codes are multiplied, and not what they stand for; where a backend is named that does not run on such a
    GPU, they are not."""
    if gpu.eight_bit_peak is None:
        return False
    try:
        choice = tiled_choice(config, DescribedGPU.from_gpu(gpu), laid_out=False)
    except UserError:
        return False
    return choice is None or choice.name != "xla"
