"""A checkpoint as a source of weights: of a run, or what `python -m jaxpar.convert` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np

from jaxpar.checkpoint import Checkpointer, CheckpointError, manifest, processes
from jaxpar.checkpoint.checkpointer import STATE
from jaxpar.checkpoint.errors import reason
from jaxpar.checkpoint.facts import CAME_FROM, HF_FACTS, read_facts, saved_config
from jaxpar.checkpoint.folders import CHECKPOINTS, step_folder
from jaxpar.checkpoint.pieces import open_saved
from jaxpar.checkpoint.sealing import damage
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.paths import RUN_CONFIG
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.families.registry import FAMILIES
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX
from jaxpar.interop.sources.source import Origin
from jaxpar.remote.cache import source_url

if TYPE_CHECKING:
    import tensorstore

HF_FILES = "hf"
"""Folder of the files of Hugging Face's format in a converted model's."""


class SavedWeights:
    """The weights of a checkpoint; every byte of it is verified before any is read.

    Args:
        path: the folder of a run or of a converted model, whose newest intact checkpoint it is; or of a checkpoint.

    Raises:
        UserError: there is no intact checkpoint, or it has no weights of a model.
    """

    mixed = False
    """Whether they are the weights of several models, of which `read` reads those of the first."""

    def __init__(self, path: Path):
        self.path = path
        self._checkpoint = (_complete(path) if (path / manifest.MANIFEST).exists() else _newest(path)).absolute()
        self.facts = facts = processes.run_on_process_0(lambda: read_facts(self._checkpoint))
        self.config = saved_config(facts, self._checkpoint)
        self._hf = facts.get(HF_FACTS)
        if self._hf is not None and self._hf["family"] not in FAMILIES:
            raise CheckpointError(
                f"checkpoint {self._checkpoint} came from a family that this release does not know "
                f"({quoted(self._hf['family'], 40)})"
            )
        self._stores: dict[str, tensorstore.TensorStore] = {}
        # Files that the manifest does not list are not seen, for as long as this object lives.
        view = manifest.view(self._checkpoint)
        self._seen = view.__enter__()
        finalize(self, view.__exit__, None, None, None)

    @property
    def location(self) -> Path:
        return self._checkpoint

    @property
    def digest(self) -> str:
        """Digest of the manifest, which has the digests of all files."""
        return processes.run_on_process_0(lambda: sha256(manifest.read(self._checkpoint).text).hexdigest())

    @property
    def model(self) -> ModelConfig:
        """The model section of its run."""
        return self.config.model

    @property
    def description(self) -> str:
        return "a converted model" if self._hf else f"the checkpoint {self._checkpoint.name}"

    @property
    def step(self) -> int | None:
        """The step of its run after which it was saved; None where its folder has another name, or was converted."""
        name = self._checkpoint.name
        return int(name) if self._hf is None and name.isascii() and name.isdigit() else None

    @property
    def run_folder(self) -> Path | None:
        """The folder of its run; None where it has been moved from there, or was converted."""
        folder = self._checkpoint.parent.parent
        return folder if self._hf is None and (folder / RUN_CONFIG).is_file() else None

    @property
    def lineage(self) -> tuple[str, ...]:
        step = "" if self.step is None else f" (step {self.step})"
        return (
            f"{source_url(self.path)}{step}",
            *self.facts.get(CAME_FROM, ()),
        )

    @property
    def origin(self) -> Origin | None:
        if self._hf is None:
            return None
        folder = self._checkpoint.parent.parent / HF_FILES
        return Origin(folder, FAMILIES[self._hf["family"]], self._hf["dtypes"])

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        if layers is None:
            return self._store(weight)[region].read().result()
        kinds, parts = layer_kinds(self.model), []
        rows = [(kinds[layer], kinds[:layer].count(kinds[layer])) for layer in layers]
        # Rows that follow one another in a stack are read at once: a file may hold many.
        for _, run in groupby(enumerate(rows), key=lambda item: (item[1][0], item[1][1] - item[0])):
            (_, (kind, first)), *rest = run
            name = f"{LAYER_PREFIX}{kind}.{weight.removeprefix(LAYER_PREFIX)}"
            parts.append(self._store(name)[(slice(first, first + 1 + len(rest)), *region)].read().result())
        return np.concatenate(parts)

    def _store(self, name: str) -> tensorstore.TensorStore:
        if name not in self._stores:
            try:
                saved = f"master/{name.replace('.', '/')}"
                self._stores[name] = open_saved(self._seen, saved, STATE)
            except (ValueError, OSError) as error:
                raise CheckpointError(
                    f"checkpoint {self._checkpoint} has no weight {name} ({reason(error)})"
                ) from error
        return self._stores[name]


def _newest(path: Path) -> Path:
    """The newest intact checkpoint of a run's or a converted model's folder."""
    folder = path / CHECKPOINTS
    notes: list[str] = []
    checkpointer = Checkpointer(folder, keep_last=1, keep_every=None, report=notes.append)
    try:
        step = checkpointer.latest()
    finally:
        checkpointer.close()
    if step is None:
        why = f"; {notes[-1]}" if notes else ""
        raise UserError(f"{named(folder)}: there is no checkpoint that can be used{why}")
    return step_folder(checkpointer.folder, step)


def _complete(checkpoint: Path) -> Path:
    """A checkpoint's own folder, once every byte of it is verified."""
    if (why := damage(checkpoint)) is not None:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used, because {why}")
    return checkpoint
