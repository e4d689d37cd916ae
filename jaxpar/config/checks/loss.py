"""Checks of the loss."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.parts import DATA_SOURCES, OBJECTIVES, PAIRS_FORMAT
from jaxpar.config.schema import Config
from jaxpar.config.spelling import one_of

SHORTEST_PAIR = 4
"""Tokens of the shortest pair: each of its documents has one token at least that is predicted from another."""


def check_loss(config: Config) -> None:
    """Refuse what the loss cannot be combined with, and a loss of pairs without a reference."""
    name = config.loss.name
    if config.model.z_loss > 0 and not OBJECTIVES[name].likelihood:
        raise UserError(
            f"model.z_loss: {config.model.z_loss:g} is a term of the cross-entropy; expected 0 with loss.name: {name}"
        )
    if not OBJECTIVES[name].pairs:
        return
    if config.loss.reference is None and config.run.init_from is None:
        raise UserError(
            f"loss.name: {name} compares the model with a reference, and loss.reference and run.init_from are null; "
            "expected the model to begin with in run.init_from, or another reference in loss.reference"
        )
    if not DATA_SOURCES[config.data.source].pairs:
        sources = one_of(name for name, source in DATA_SOURCES.items() if source.pairs)
        raise UserError(
            f"loss.name: {name} trains on pairs of answers, and data.source is {config.data.source}; expected "
            f"data.source: {sources}, with a token folder that python -m jaxpar.prepare --format {PAIRS_FORMAT} made"
        )
    if not config.data.packed:
        raise UserError(
            f"data.packed: false lets the answers of a row see each other; expected true with loss.name: {name}"
        )
    if config.data.sequence_length < SHORTEST_PAIR:
        raise UserError(
            f"data.sequence_length: {config.data.sequence_length} has no room for a pair of answers "
            f"(loss.name: {name}); expected at least {SHORTEST_PAIR}"
        )
