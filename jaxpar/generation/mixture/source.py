"""The folder of a mixture: its models' runs, its router, and `mixture.json`, which says of which weights it is.

A folder that `python -m jaxpar.mixture` wrote is a MODEL of generation, serving and evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np

from jaxpar.config.errors import UserError
from jaxpar.config.reading.text_file import read_file
from jaxpar.config.reading.typed import record_from_plain
from jaxpar.config.spelling import named
from jaxpar.data.tokens.digests import digest
from jaxpar.generation.mixture.router import Mixing, RouterWeights
from jaxpar.interop.sources.open_source import local_model, open_source
from jaxpar.interop.sources.saved_weights import SavedWeights
from jaxpar.interop.sources.source import check_fits
from jaxpar.observe.files import write_atomically

RECORD, ROUTER_FILE = "mixture.json", "router.npz"
REMAKE_HINT = "the same command of python -m jaxpar.mixture makes it again"


@dataclass(frozen=True)
class Record:
    """The content of `mixture.json`."""

    models: tuple[str, ...]
    """Names of the folders of the models' runs, within the mixture's."""
    weights: tuple[str, ...]
    """The digest of each model's weights."""
    router: str
    """The digest of the router's file."""
    top: int
    """Models that are mixed at a token."""
    validation: dict[str, float] = field(default_factory=dict)
    """Nats a token of validation text: of the mixture with more or fewer models at a token, and of others."""


class MixedWeights(SavedWeights):
    """The models of a mixture, and its router; besides, the first model's run, whose text and length are all models'.

    Raises:
        UserError: a model is missing or another one than the router's, or they do not go together.
    """

    mixed = True

    def __init__(self, path: Path):
        record = read_record(path)
        self.models = open_models([path / name for name in record.models])
        for model, wanted in zip(self.models, record.weights, strict=True):
            if model.digest != wanted:
                raise UserError(
                    f"{named(path)}: {named(model.path)} has other weights than the router of {RECORD} is for; "
                    f"{REMAKE_HINT}"
                )
        self.router = _read_router(path, record)
        self.mixing = Mixing(len(record.models), record.top)
        super().__init__(self.models[0].path)
        self.path = path

    @property
    def step(self) -> None:
        """None: it is of several runs."""
        return None

    @property
    def run_folder(self) -> None:
        """None: it is of several runs."""
        return None

    @property
    def description(self) -> str:
        return f"a mixture of {len(self.models)} models"


def is_mixture(path: str) -> bool:
    """Whether a MODEL is a mixture."""
    return (local_model(path, "--model") / RECORD).is_file()


def open_models(paths: Sequence[Path]) -> list[SavedWeights]:
    """The models of runs. Raises `UserError` where they are not of one vocabulary and one shape."""
    models: list[SavedWeights] = []
    for path in paths:
        source = open_source(path, "the mixture")
        if not isinstance(source, SavedWeights):
            raise UserError(f"the mixture: {named(path)} has {source.description}; expected a run of all weights")
        models.append(source)
    first, *others = models
    for other in others:
        if other.model.vocab != first.model.vocab:
            raise UserError(
                f"the mixture: {named(other.path)} has a vocabulary of {other.model.vocab}, and {named(first.path)} "
                f"one of {first.model.vocab}; expected models of one tokenizer"
            )
        if check_fits(other, first.model, "the mixture"):
            raise UserError(
                f"the mixture: {named(other.path)} and {named(first.path)} differ in their model section; expected "
                "models of one"
            )
    return models


def read_record(path: Path) -> Record:
    """The content of `mixture.json`. Raises `UserError` where it is missing or damaged."""
    file = path / RECORD
    damaged = UserError(f"{named(file)} is damaged; {REMAKE_HINT}")
    try:
        raw = read_file(file)
        plain = json.loads(raw)
        del plain["digest"]
        record = record_from_plain(Record, plain, str(file))
    except FileNotFoundError:
        raise UserError(f"{named(file)} does not exist; python -m jaxpar.mixture makes it") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    k = len(record.models)
    if _encode(record) != raw or k < 2 or len(record.weights) != k or not 1 <= record.top <= k:
        raise damaged
    return record


def write_mixture(path: Path, record: Record, router: RouterWeights) -> None:
    """Write the router, and then the record with its digest. Raises `OSError`."""
    content = encode_router(router)
    write_atomically(path / ROUTER_FILE, content)
    write_atomically(path / RECORD, _encode(record))


def encode_router(router: RouterWeights) -> bytes:
    """The bytes of a router's file."""
    content = BytesIO()
    np.savez(content, table=router.table, bias=router.bias)
    return content.getvalue()


def _encode(record: Record) -> bytes:
    plain = json.loads(json.dumps(asdict(record)))
    plain["digest"] = digest(json.dumps(plain, sort_keys=True).encode())
    return (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()


def _read_router(path: Path, record: Record) -> RouterWeights:
    file = path / ROUTER_FILE
    try:
        raw = read_file(file)
    except FileNotFoundError:
        raise UserError(f"{named(file)} does not exist; {REMAKE_HINT}") from None
    if digest(raw) != record.router:
        raise UserError(f"{named(file)} is damaged or the router of another mixture than {RECORD} is of; {REMAKE_HINT}")
    with np.load(BytesIO(raw), allow_pickle=False) as arrays:
        return RouterWeights(arrays["table"], arrays["bias"])
