"""All checks of a configuration, including those that need the weights of its layers."""

from __future__ import annotations

from dataclasses import replace

from jaxpar.config.bounds import PARAMETERS
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.spelling import did_you_mean, one_of, quoted
from jaxpar.config.validate import VOCAB, became_known
from jaxpar.config.validate import validate as validate_keys
from jaxpar.layers.counting import parameter_count
from jaxpar.layers.declared import declare_layer


def validate(config: Config, since: Config | None = None) -> None:
    """`jaxpar.config.validate.validate`, and a check that the model is not larger than any machine can hold.

    Raises:
        UserError: the first thing that is wrong, in one sentence.
    """
    validate_keys(config, since)
    if since is None or VOCAB in became_known(since, config):
        check_parameters(config.model)
    if since is None:
        check_targets(config)


def check_targets(config: Config) -> None:
    """Refuse `lora.targets` that no layer has as a matrix.

    Raises:
        UserError: see above.
    """
    parts = [part for own in kind_models(config.model).values() for part in declare_layer(own).parts]
    known = tuple(dict.fromkeys(name for part in parts for group in part.groups for name in group.weights))
    for name in config.lora.targets or ():
        if name not in known:
            raise UserError(
                f"lora.targets: {quoted(name, 80)} is no matrix of this model's layers"
                f"{did_you_mean(name, known) or f'; there are {one_of(known)}'}"
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
