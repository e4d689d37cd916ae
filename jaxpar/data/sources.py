"""Opening the data that a configuration names: `jaxpar.config.parts.DATA_SOURCES` lists the sources."""

from __future__ import annotations

from importlib import import_module

from jaxpar.config.parts import DATA_SOURCES
from jaxpar.config.schema import DataConfig
from jaxpar.data.opened import Data


def open_data(config: DataConfig, *, vocab: int | None, seed: int) -> Data:
    """The data that `config` names.

    Args:
        config: the `data` section.
        vocab: `model.vocab`; None takes the vocabulary from the data.
        seed: order of the training data.

    Raises:
        UserError: the data is missing, broken, too short for a row, or has tokens that `vocab` does not.
    """
    module, name = DATA_SOURCES[config.source].opener.split(":")
    return getattr(import_module(module), name)(config, vocab, seed)
