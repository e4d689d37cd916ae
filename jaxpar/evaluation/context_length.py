"""The maximum number of tokens that a model reads."""

from __future__ import annotations

from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.interop.sources.adapted import AdaptedWeights
from jaxpar.interop.sources.hf_folder import HFFolder, read_config
from jaxpar.interop.sources.open_source import Model

KEYS = ("max_position_embeddings", "n_positions")
"""Keys of `config.json`, the first that is there."""


def context_length(source: Model, wanted: int | None) -> int:
    """The longest context: what the user wants, or that of the training of a run, or of `config.json`.

    Raises:
        UserError: the model has fewer learned positions, or nothing is known.
    """
    model = source.model
    length = _known(source) if wanted is None else wanted
    if model.position == "learned" and (length is None or length > model.max_positions):
        if wanted is not None:
            raise UserError(
                f"--length {wanted}: the model has learned positions; expected at most {model.max_positions}"
            )
        return model.max_positions
    if length is None:
        raise UserError(f"--length: {named(source.path)} says nothing about the length of texts; expected a number")
    return length


def _known(source: Model) -> int | None:
    if isinstance(source, AdaptedWeights) or (not isinstance(source, HFFolder) and source.origin is None):
        return source.config.data.sequence_length
    assert source.origin is not None
    hf_config = read_config(source.origin.folder)
    lengths = (hf_config.get(key) for key in KEYS)
    return next((length for length in lengths if type(length) is int and length > 0), None)
