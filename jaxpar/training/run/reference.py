"""The other models of a run: the one that it begins with, and the reference that a loss of pairs compares with.

The reference's log-probabilities of all pairs are computed once, and stored beside them. Each process has the values
that process 0 read, or those that all of them computed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Float32, Int

from jaxpar.checkpoint.errors import reason
from jaxpar.checkpoint.facts import REFERENCE
from jaxpar.checkpoint.processes import run_on_process_0
from jaxpar.config import Config, UserError
from jaxpar.config.checks.loss import data_of
from jaxpar.config.mappings.policy import policy_of
from jaxpar.config.parts import OBJECTIVES, objectives_of
from jaxpar.config.spelling import join_or, named, quoted
from jaxpar.data import Data
from jaxpar.data.opened import PairedSplit
from jaxpar.data.tokens.reference_file import ReferenceFile
from jaxpar.distributed.devices import Device
from jaxpar.generation.placed_model import place_on
from jaxpar.generation.scorer import Scorer
from jaxpar.interop.config_json import Difference
from jaxpar.interop.mapping.form import ReadPart
from jaxpar.interop.sources.adapted import base_facts, check_base
from jaxpar.interop.sources.open_source import Model, open_source
from jaxpar.interop.sources.source import WeightSource, check_fits, read_part
from jaxpar.layout.state import TrainState
from jaxpar.layout.step_layout import StepLayout, shardings
from jaxpar.mesh.parameters import ModelTree, ParamSpec, Specs, Weights
from jaxpar.observe.events import Listener
from jaxpar.observe.files import write_atomically
from jaxpar.pages.units import plural
from jaxpar.training.residency.on_device import OnDevice

KEY = "loss.reference"
INIT_FROM = "run.init_from"
_REPORTS = 10
"""Number of reports of a split's progress, each of which stores it."""


def check_pairs(config: Config, data: Data) -> None:
    """Raise `UserError` for pairs under a loss of tokens, or a loss of pairs without them."""
    where, name = f"data.path={quoted(str(config.data.path))}", config.loss.name
    answers = OBJECTIVES[name].answers
    has = data.paired[0].folder.index.answers if data.paired else None
    if answers and has != answers:
        raise UserError(
            f"loss.name: {name} trains on {data_of(answers)}, and {where} has none; expected a token folder that "
            f"python -m jaxpar.prepare --format {answers} made"
        )
    if has and not answers:
        raise UserError(
            f"loss.name: {name} would train on the rejected answers too, which {where} has; expected "
            f"loss.name: {join_or(objectives_of(has))}, or a folder of another format"
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
                scorer = scorer_of(config, source, devices)
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
        stored = file.read()
        if stored is not None:
            values[:] = stored
        return stored is not None

    if run_on_process_0(read) and jax.process_count() > 1:
        values = np.array(multihost_utils.broadcast_one_to_all(values))
    return file, values


def scorer_of(config: Config, source: Model, devices: Sequence[Device], temperature: float = 1.0) -> Scorer:
    """Scores in the precision of the run, so that a model has the same log-probabilities as its own reference."""
    alone = Config(model=source.model, precision=config.precision, attention=config.attention)
    return Scorer(place_on(alone, source, devices), temperature)


def _compute(
    part: PairedSplit, file: ReferenceFile, values: Float32[np.ndarray, " n"], missing: Int[np.ndarray, " m"],
    scorer: Scorer, listeners: Listener,
) -> None:  # fmt: skip
    """Fill in the missing values; those that are done are stored now and then, so that a kill loses few of them."""
    stream, total = part.rows.stream, len(missing)
    of = f"{plural(total, 'document')} of {named(part.folder.path)} ({part.split})"
    text = f"Computing the reference's log-probabilities of {of}, which are stored beside them."
    assert stream.loss_mask is not None, "pairs have marks of what is counted"
    listeners.progress(text, 0, total)
    starts, lengths, stored = stream.starts[:], stream.lengths, True
    # By length, so that batches are full; the longest first, which fail first if they do not fit into memory.
    ordered = missing[np.argsort(-lengths[missing], kind="stable")]
    done = 0
    for chosen in np.array_split(ordered, min(_REPORTS, len(ordered))):
        spans = [slice(int(starts[one]), int(starts[one] + lengths[one])) for one in chosen]
        scores = scorer.scored([stream.tokens[span].tolist() for span in spans])
        for document, span, scored in zip(chosen, spans, scores, strict=True):
            in_loss = stream.loss_mask[span][1:] != 0
            values[document] = scored.log_probabilities.astype(np.float64)[in_loss].sum()
            if not np.isfinite(values[document]):
                raise UserError(
                    f"{KEY}: the reference gives document {document + 1} of {named(part.folder.path)} ({part.split}) "
                    "no finite log-probability; expected a model whose weights are finite"
                )
        done += len(chosen)
        if stored and (failure := run_on_process_0(lambda: _store(file, values))) is not None:
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


class SourceModels:
    """The models of `run.init_from` and `loss.reference`, opened when they are first used.

    Args:
        layout: of the run.
    """

    def __init__(self, layout: StepLayout):
        self._layout, self._config = layout, layout.config
        self.differences: list[Difference] = []
        """Other differences of the model of `run.init_from` from the trained one."""

    @cached_property
    def first(self) -> Model | None:
        """`run.init_from`, opened and checked; None where weights are drawn from the seed.

        Raises `UserError` where there is no such model, or its weights do not fit this one.
        """
        begin = self._config.run.init_from
        if begin is None:
            return None
        source = open_source(begin, INIT_FROM)
        self.differences = check_fits(source, self._config.model, INIT_FROM)
        return source

    def frozen(self, mesh: Mesh) -> Weights:
        """The frozen weights, from `run.init_from`."""
        return frozen_weights(self._base, self._layout, mesh)

    @cached_property
    def reference(self) -> Model | None:
        """The model that the trained one is compared with under a loss of pairs or with a penalty, or its teacher:
        `loss.reference`, or `first`.

        Raises `UserError` where there is no such model.
        """
        entry = OBJECTIVES[self._config.loss.name]
        penalty = entry.rewards and policy_of(self._config.loss).kl != "none"
        if not (penalty or entry.teacher or (entry.answers and "reference" in entry.keys)):
            return None
        named = self._config.loss.reference
        return self.first if named is None else open_source(named, KEY)

    @cached_property
    def facts(self) -> dict[str, object]:
        """Facts of a checkpoint: the model whose weights are frozen, and the reference."""
        frozen = base_facts(self._base) if self._layout.frozen else {}
        return frozen | ({} if self.reference is None else reference_facts(self.reference))

    def check_base(self, facts: Mapping[str, object]) -> None:
        """Raise `UserError` if the facts of a checkpoint are about other frozen weights than those of `first`."""
        if self._layout.frozen:
            check_base(self._base, facts, "the run")

    def check_reference(self, facts: Mapping[str, object]) -> None:
        """Raise `UserError` if the facts of a checkpoint are about another reference; a new run has none."""
        if self.reference is not None and facts:
            check_reference(self.reference, facts)

    @property
    def _base(self) -> Model:
        """The model whose weights are frozen."""
        assert self.first is not None, "weights are frozen that another model has"
        return self.first


def initial_state_from(source: WeightSource, state: TrainState, residency: OnDevice) -> TrainState:
    """A state before the first step, with the weights of `source`, which fit; it is used up.

    If some weights are frozen, they are those of `source`, and the trained ones stay as they are.
    """
    layout = residency.layout
    if not layout.frozen:
        return residency.with_weights(state, _reads(source, layout, layout.specs))
    for leaf in jax.tree.leaves(state.frozen):
        leaf.delete()
    return state._replace(frozen=frozen_weights(source, layout, residency.mesh))


def frozen_weights(source: WeightSource, layout: StepLayout, mesh: Mesh) -> Weights:
    """The frozen weights of a state, from `source`."""

    def placed(read: ReadPart, like: jax.ShapeDtypeStruct, where: NamedSharding) -> jax.Array:
        part: Any = cache(lambda region: read(region).astype(like.dtype))  # replicas have the same ones
        return jax.make_array_from_callback(like.shape, where, part)

    reads = _reads(source, layout, layout.frozen)
    return jax.tree.map(placed, reads, layout.state_shapes.frozen, shardings(mesh, layout.state.frozen))


def _reads(source: WeightSource, layout: StepLayout, specs: Specs) -> ModelTree[ReadPart]:
    """A function for each weight that returns a part of it."""
    return jax.tree_util.tree_map_with_path(
        lambda path, spec: read_part(source, path, spec, layout.order),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, ParamSpec),
    )
