"""Checks of `precision.matmul`; those that need the layers' matrices are in `jaxpar.layout.checks`."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.mappings.matmul import OF_TILES
from jaxpar.config.schema import Config


def check_matmul(config: Config) -> None:
    """Refuse what a recipe cannot be combined with, and exceptions that leave nothing."""
    precision, layers = config.precision, config.model.layers
    recipe, options = precision.matmul, precision.matmul_options
    if recipe is None:
        return
    if precision.compute == "float16":
        raise UserError(
            f"precision.matmul: {recipe} needs the range of bfloat16 between matmuls, and precision.compute is "
            "float16; expected precision.compute: bfloat16 with it, or precision.matmul: null"
        )
    if options.first_layers + options.last_layers >= layers:
        raise UserError(
            f"precision.matmul_options: first_layers {options.first_layers} and last_layers {options.last_layers} "
            f"leave none of the {layers} layers of the model (model.layers) to {recipe}; expected fewer, or "
            "precision.matmul: null"
        )
    if config.parallel.overlap.tensor == "ring" and recipe in OF_TILES:
        raise UserError(
            f"parallel.overlap.tensor: ring has no matmuls with scales of tiles, and precision.matmul is {recipe}; "
            "expected auto or plain, or a recipe without tiles"
        )
    if (config.memory.mlp_tiles or 1) > 1:
        raise UserError(
            f"memory.mlp_tiles: {config.memory.mlp_tiles} would give each tile scales of its own under "
            f"precision.matmul: {recipe}; expected 1 or null"
        )
