"""Opening the data that a configuration names: `jaxpar.config.parts.DATA_SOURCES` lists the sources."""

from __future__ import annotations

from jaxpar.config.parts import DATA_SOURCES, implementation
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
    return implementation(DATA_SOURCES[config.source].opener)(config, vocab, seed)
