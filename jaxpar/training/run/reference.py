"""The reference of a loss of pairs: its log-probabilities of all pairs, computed once, and stored beside them.

Each process has the values that process 0 read, or those that all of them computed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float32, Int

from jaxpar.checkpoint.errors import reason
from jaxpar.checkpoint.facts import REFERENCE
from jaxpar.checkpoint.processes import from_first
from jaxpar.config import Config, UserError
from jaxpar.config.parts import OBJECTIVES, PAIRS_FORMAT, objectives_of_pairs
from jaxpar.config.spelling import named, one_of, quoted
from jaxpar.data import Data
from jaxpar.data.opened import PairedSplit
from jaxpar.data.tokens.reference_file import ReferenceFile
from jaxpar.distributed.devices import Device
from jaxpar.generation.placed_model import place_on
from jaxpar.generation.scorer import Scorer
from jaxpar.interop.sources.open_source import Model
from jaxpar.observe.events import Listener
from jaxpar.observe.files import write_atomically
from jaxpar.units import plural

KEY = "loss.reference"
_REPORTS = 10
"""How often the progress of a split is reported, and stored."""


def check_pairs(config: Config, data: Data) -> None:
    """Raise `UserError` for pairs under a loss of tokens, or a loss of pairs without them."""
    where, name = f"data.path={quoted(str(config.data.path))}", config.loss.name
    pairs = OBJECTIVES[name].pairs
    if pairs and not data.paired:
        raise UserError(
            f"loss.name: {name} trains on pairs of answers, and {where} has none; expected a token folder that python "
            f"-m jaxpar.prepare --format {PAIRS_FORMAT} made"
        )
    if data.paired and not pairs:
        raise UserError(
            f"loss.name: {name} would train on the rejected answers too, which {where} has; expected "
            f"loss.name: {one_of(objectives_of_pairs())}, or a folder of another format"
        )


def reference_facts(source: Model) -> dict[str, object]:
    """The fact that names `source` as the reference."""
    return {REFERENCE: {"path": str(source.location), "digest": source.digest}}


def check_reference(source: Model, facts: Mapping[str, Any]) -> None:
    """Raise `UserError` if the reference is not the one of the facts of a checkpoint."""
    if REFERENCE not in facts:
        raise UserError(f"the run compares its model with another, and its facts have no {REFERENCE!r}")
    if source.digest != facts[REFERENCE]["digest"]:
        raise UserError(
            f"the run compares its model with the weights that {facts[REFERENCE]['path']} had, and "
            f"{named(source.location)} has others; expected the same weights there"
        )


def provide_reference(
    config: Config, data: Data, source: Model, devices: Sequence[Device], listeners: Listener
) -> None:
    """Give the rows of pairs of `data` the values of the reference `source`: from their file, or computed and stored.

    Args:
        config: of the run.
        data: has pairs.
        source: the reference.
        devices: compute the values, and hold the whole reference meanwhile.
        listeners: are told of the progress.

    Raises:
        UserError: the reference has another vocabulary, gives a document no finite log-probability, or the file of its
            values is damaged.
    """
    vocab = source.model.vocab
    assert vocab is not None, "a source knows its vocabulary"
    for part in data.paired:
        if part.folder.index.vocab > vocab:
            raise UserError(
                f"{KEY}: {named(source.path)} has a vocabulary of {vocab}, and {named(part.folder.path)} has tokens of "
                f"{part.folder.index.vocab}; expected a model of the same tokenizer"
            )
    scorer: Scorer | None = None
    for part in data.paired:
        file, values = _stored(part, source, config)
        missing = np.flatnonzero(part.rows.needed & np.isnan(values))
        if len(missing):
            if scorer is None:
                scorer = _scorer(config, source, devices)
            _compute(part, file, values, missing, scorer, listeners)
        part.rows.reference.values = values


def _stored(part: PairedSplit, source: Model, config: Config) -> tuple[ReferenceFile, Float32[np.ndarray, " n"]]:
    """The file of a split's values, and the values that process 0 finds there; NaN for the others."""
    documents = len(part.rows.stream.starts)
    facts = {
        "tokens": part.folder.identity, "split": part.split, "model": source.digest,
        "compute": config.precision.compute,
    }  # fmt: skip
    file, values = ReferenceFile(part.folder.path, facts, documents), np.full(documents, np.nan, np.float32)

    def read() -> bool:
        found = file.read()
        if found is not None:
            values[:] = found
        return found is not None

    if from_first(read) and jax.process_count() > 1:
        values = np.array(multihost_utils.broadcast_one_to_all(values))
    return file, values


def _scorer(config: Config, source: Model, devices: Sequence[Device]) -> Scorer:
    """In the precision of the run, so that a model has the same log-probabilities as its own reference."""
    alone = Config(model=source.model, precision=config.precision, attention=config.attention)
    return Scorer(place_on(alone, source, devices))


def _compute(
    part: PairedSplit, file: ReferenceFile, values: Float32[np.ndarray, " n"], missing: Int[np.ndarray, " m"],
    scorer: Scorer, listeners: Listener,
) -> None:  # fmt: skip
    """Fill in the missing values; those that are done are stored now and then, so that a kill loses few of them."""
    stream, total = part.rows.stream, len(missing)
    of = f"{plural(total, 'document')} of {named(part.folder.path)} ({part.split})"
    text = f"Computing the reference's log-probabilities of {of}, which are stored beside them."
    assert stream.counted is not None, "pairs have marks of what is counted"
    listeners.progress(text, 0, total)
    starts, lengths, stored = stream.starts[:], stream.lengths, True
    # By length, so that batches are full; the longest first, which fail first if they do not fit into memory.
    ordered = missing[np.argsort(-lengths[missing], kind="stable")]
    done = 0
    for chosen in np.array_split(ordered, min(_REPORTS, len(ordered))):
        places = [slice(int(starts[one]), int(starts[one] + lengths[one])) for one in chosen]
        scores = scorer.scored([stream.tokens[place].tolist() for place in places])
        for document, place_of, own in zip(chosen, places, scores, strict=True):
            counts = stream.counted[place_of][1:] != 0
            values[document] = own.log_probabilities.astype(np.float64)[counts].sum()
            if not np.isfinite(values[document]):
                raise UserError(
                    f"{KEY}: the reference gives document {document + 1} of {named(part.folder.path)} ({part.split}) "
                    "no finite log-probability; expected a model whose weights are finite"
                )
        done += len(chosen)
        if stored and (failure := from_first(lambda: _store(file, values))) is not None:
            stored = False
            listeners.message(
                f"{file.path} cannot be written ({failure}): the next start of the run computes its values again."
            )
        listeners.progress(text, done, total)


def _store(file: ReferenceFile, values: Float32[np.ndarray, " n"]) -> str | None:
    """Write the file; why it cannot be written, if it cannot."""
    try:
        write_atomically(file.path, file.encoded(values))
    except OSError as error:
        return reason(error)
    return None
