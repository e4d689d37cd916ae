"""Checks of adapters: low-rank factors (`lora`)."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import Config
from jaxpar.layers.adapters import adaptable
from jaxpar.layers.declared import declare_layer
from jaxpar.layout.checks.model import check_known


def check_adapters(config: Config) -> None:
    """Refuse factors without a model that they adapt, and what they cannot be combined with."""
    lora, memory = config.lora, config.memory
    if lora.rank is None:
        return
    text = f"lora.rank: {lora.rank}"
    if config.run.init_from is None:
        raise UserError(
            f"{text} adds factors to the weights of a model, and run.init_from is null; expected a model with it, or "
            "lora.rank: null, which trains all weights"
        )
    if any(model.latent_attention is not None for model in kind_models(config.model).values()):
        raise UserError(f"{text} adapts no latent attention yet (model.latent_attention); expected null")
    if config.model.low_rank:
        products = ", ".join(config.model.low_rank)
        raise UserError(
            f"{text} adds factors to whole matrices, and model.low_rank makes {products} products of two; expected "
            "one of the two keys"
        )
    if memory.optimizer_offload != "none":
        raise UserError(
            f"{text} leaves moments of the small factors alone, and memory.optimizer_offload is "
            f"{memory.optimizer_offload}; expected none with it"
        )
    if lora.targets is None:
        return
    if not lora.targets:
        raise UserError("lora.targets: [] gives no matrix factors; expected names of matrices, or null for all")
    twice = [name for index, name in enumerate(lora.targets) if name in lora.targets[:index]]
    if twice:
        raise UserError(f"lora.targets: {twice[0]} is named twice; expected each matrix once")


def check_targets(config: Config) -> None:
    """Refuse `lora.targets` that no layer has as a matrix. Raises `UserError`."""
    parts = [part for layer in kind_models(config.model).values() for part in declare_layer(layer).parts]
    known = tuple(dict.fromkeys(name for part in parts for name in adaptable(part)))
    for name in config.lora.targets or ():
        check_known("lora.targets", name, known, "matrix")
