"""The last stage of a mixture: its router, from the models' probabilities of validation text, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxpar.config import load_config
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named
from jaxpar.data.stream import TokenStream
from jaxpar.data.tokens.digests import digest
from jaxpar.data.tokens.token_folder import TokenFolder, open_token_folder
from jaxpar.evaluation.windows import windows
from jaxpar.generation.mixture.fit import ValidationRows, counted_table, evidence_before, fitted
from jaxpar.generation.mixture.router import RouterWeights
from jaxpar.generation.mixture.source import Record, encode_router, open_models, write_mixture
from jaxpar.generation.placed_model import place_model
from jaxpar.generation.sampling import NotFinite
from jaxpar.generation.scorer import Scorer
from jaxpar.interop.sources.saved_weights import SavedWeights
from jaxpar.pages.units import plural

MOST_TOKENS = 2**16
"""Most validation tokens that the router is fitted on, and as many that it is measured on."""

type Rows = list[list[int]]
type Report = Callable[[str], None]


def make_mixture(
    out: Path, names: Sequence[str], folder: Path, clusters: Sequence[Path], top: int, report: Report
) -> Record:
    """Fit the router of the models in `out`, write it and `mixture.json`, and return that.

    Every other validation document is for the router; the mixture is measured on the rest.

    Args:
        out: the folder of the runs.
        names: those of the runs' folders in it.
        folder: the token folder that was clustered.
        clusters: the token folder of each run.
        top: models that are mixed at a token.
        report: is called with lines of progress.

    Raises:
        UserError: there is too little validation text, or the models do not go together.
    """
    opened = open_token_folder(folder, key="--tokens")
    models = open_models([out / name for name in names])
    length = models[0].config.data.sequence_length
    fit_rows, test_rows = validation_rows(opened, length)
    scored = []
    for name, source in zip(names, models, strict=True):
        report(f"{name} reads {plural(sum(map(len, fit_rows + test_rows)), 'validation token')}")
        scored.append(log_probabilities(source, fit_rows + test_rows))
    scores = np.stack(scored, axis=1)
    table = counted_table([_documents(open_token_folder(path, key="cluster").train) for path in clusters])
    evidence = np.concatenate([evidence_before(table, np.array(row)) for row in fit_rows + test_rows])
    size = sum(len(row) - 1 for row in fit_rows)
    scale, bias = fitted(ValidationRows(evidence[:size], scores[:size]))
    router = RouterWeights((scale * table).astype(np.float32), bias.astype(np.float32))
    validation = nats(ValidationRows(scale * evidence[size:] + bias, scores[size:]))
    weights = tuple(model.digest for model in models)
    record = Record(tuple(names), weights, digest(encode_router(router)), top, validation)
    write_mixture(out, record, router)
    return record


def log_probabilities(source: SavedWeights, rows: Rows) -> Float[np.ndarray, " token"]:
    """The log-probability of each token of rows but the first of each, in nats. Raises `NotFinite`."""
    config = replace(load_config(None, ()), model=source.model)
    scores = Scorer(place_model(config, source)).scored(rows)
    every = np.concatenate([score.log_probabilities for score in scores]).astype(np.float64)
    if not np.isfinite(every).all():
        raise NotFinite
    return every


def nats(validation: ValidationRows) -> dict[str, float]:
    """Mean negative log-likelihood of a token: of the mixtures of 1, 2, ... models, of all models alike, and of each
    alone. The evidence of `validation` is that of the fitted router, with its bias."""
    logits, scores = validation
    k = logits.shape[1]
    order = np.argsort(np.argsort(-logits, axis=1, kind="stable"), axis=1, kind="stable")
    mixtures = {f"top {top}": np.where(order < top, logits, -np.inf) for top in range(1, k + 1)}
    mixtures["all alike"] = np.zeros_like(logits)
    values = {name: _mean(_log_softmax(weights), scores) for name, weights in mixtures.items()}
    return values | {f"model {one} alone": float(-scores[:, one].mean()) for one in range(k)}


def _mean(log_weights: np.ndarray, scores: np.ndarray) -> float:
    return float(-np.logaddexp.reduce(log_weights + scores, axis=1).mean())


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def validation_rows(opened: TokenFolder, length: int) -> tuple[Rows, Rows]:
    """Windows of the validation documents in a model's context: of those at even positions, on which a router is
    fitted, and of the others, on which it is measured. Raises `UserError` where one has none."""
    rows: tuple[Rows, Rows] = [], []
    documents = [] if opened.validation is None else _documents(opened.validation)
    for index, document in enumerate(documents):
        parts = windows(document.tolist(), opened.index.separator, length)
        rows[index % 2].extend(before + scored for before, scored in parts)
    if not all(rows):
        raise UserError(
            f"--tokens: {named(opened.path)} has fewer than 2 validation documents, and a router needs some; expected "
            "a larger --validation-fraction when python -m jaxpar.prepare made it"
        )
    return _limited(rows[0]), _limited(rows[1])


def _limited(rows: Rows) -> Rows:
    """Rows of all documents, evenly, of about `MOST_TOKENS` tokens at most."""
    every = -(-sum(map(len, rows)) // MOST_TOKENS) or 1
    return rows[::every]


def _documents(stream: TokenStream) -> Iterator[np.ndarray]:
    for first, length in zip(stream.starts[:].tolist(), stream.lengths.tolist(), strict=True):
        yield stream.tokens[first : first + length]


def table_of(validation: Mapping[str, float]) -> str:
    """A line for each number."""
    wide = max(map(len, validation))
    return "\n".join(f"{name:{wide}}  {value:.4f}" for name, value in validation.items())
