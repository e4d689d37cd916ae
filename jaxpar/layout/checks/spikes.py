"""Checks of `precision.spikes`. All raise `UserError`."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.kinds import key_of, kind_models
from jaxpar.config.schema import Config


def check_spikes(config: Config) -> None:
    """Refuse spikes beside quantized matmuls, and as inputs of experts."""
    rate, matmul = config.precision.spikes, config.precision.matmul
    if rate is None:
        return
    if matmul is not None:
        raise UserError(f"precision.spikes: {rate:g}, and precision.matmul: {matmul}; expected null for one of them")
    for kind, model in kind_models(config.model).items():
        if model.experts is not None:
            raise UserError(
                f"precision.spikes: {rate:g}, and {key_of(kind, 'experts')}: experts take no spikes; expected null"
            )


def refuse_spikes(config: Config) -> None:
    """Refuse to train with spikes, whose rounding has no gradient."""
    if config.precision.spikes is not None:
        raise UserError(
            f"precision.spikes: {config.precision.spikes:g} has no gradient; expected null for training, and this key "
            "with jaxpar.evaluate or jaxpar.generate"
        )
