"""A source of weights by its path: what a user names as MODEL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jaxpar.checkpoint.facts import BASE, require
from jaxpar.checkpoint.folders import CHECKPOINTS
from jaxpar.checkpoint.manifest import MANIFEST, newest_files
from jaxpar.config.errors import UserError
from jaxpar.config.spelling import named, quoted
from jaxpar.interop.config_json import family_for
from jaxpar.interop.mapping.family import Family, tensors_of
from jaxpar.interop.sources.adapted import AdaptedWeights
from jaxpar.interop.sources.hf_folder import CONFIG, HFFolder
from jaxpar.interop.sources.saved_weights import SavedWeights
from jaxpar.interop.sources.source import Origin
from jaxpar.interop.sources.tensor_files import TensorFiles, TensorWeights, has_tensors
from jaxpar.layers.declaration.adaptation import adaptation_of
from jaxpar.remote.cache import local_path

EXPECTED = (
    "expected a folder in Hugging Face's format (config.json and .safetensors files), of a run, of a checkpoint, or "
    "one that python -m jaxpar.convert wrote"
)
"""Help text for a MODEL argument."""


type Model = HFFolder | SavedWeights | AdaptedWeights
"""The weights of a MODEL."""


def open_source(path: str | Path, key: str) -> Model:
    """The weights at a path; nothing is read of them yet. Collective over the processes of a job.

    Those of a run with low-rank factors are merged with the weights of the model that the run began with.

    Args:
        path: a MODEL.
        key: what names it, for messages: `run.init_from`, or an argument.

    Raises:
        UserError: there is no model, or it is damaged or not supported.
    """
    folder = local_model(path, key)
    try:
        if (folder / MANIFEST).exists() or (folder / CHECKPOINTS).is_dir():
            return _with_base(SavedWeights(folder))
        if (folder / CONFIG).exists():
            return HFFolder(folder)
        if folder.is_dir():
            what = f"has no {CONFIG}" if has_tensors(folder) else "holds no model"
            raise UserError(f"{key}: {quoted(str(path))} {what}; {EXPECTED}")
        if folder.exists():
            raise UserError(f"{key}: {quoted(str(path))} is a file; {EXPECTED}")
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{key}: {quoted(str(path))} cannot be read ({getattr(error, 'strerror', error)})") from None
    raise UserError(
        f"{key}: {quoted(str(path))} does not exist; {EXPECTED}; hf://NAME copies a model of the Hugging Face Hub"
    )


def local_model(path: str | Path, key: str) -> Path:
    """The path of a MODEL, or of a local copy of one at a URL, without weights in formats that are not read.

    Raises:
        UserError: as `local_path`.
    """
    others = (".bin", ".pth", ".pt", ".gguf", ".onnx", ".msgpack", ".h5", ".ckpt")
    return local_path(path, key, lambda names: newest_files([name for name in names if not name.endswith(others)]))


def _with_base(saved: SavedWeights) -> SavedWeights | AdaptedWeights:
    """A checkpoint's weights, merged with the adapted model if the checkpoint has only factors."""
    if adaptation_of(saved.config).frozen_by is None:
        return saved
    require(saved.location, saved.facts, [BASE])
    return AdaptedWeights(saved, open_source(saved.facts[BASE]["path"], f"{saved.location}: the model that it adapts"))


def origin_of(source: Model, report: Callable[[str], None]) -> Origin | None:
    """The first origin of a source's weights, followed through runs that began with others' weights.

    None for weights that were drawn, and where the model that a run began with cannot be opened, which is reported.
    """
    seen: set[str] = set()
    while source.origin is None and not isinstance(source, HFFolder):
        if isinstance(source, AdaptedWeights):
            source = source.base
            continue
        begun_from = source.config.run.init_from
        if begun_from is None or begun_from in seen:
            return None
        seen.add(begun_from)
        try:
            source = open_source(begun_from, "run.init_from")
        except UserError as error:
            report(f"The model that the run began with cannot be used for its config.json and tokenizer: {error}.")
            return None
    return source.origin


def family_of(source: Model) -> Family:
    """The family in whose format the weights of a model are, or may be. Raises `UserError` where there is none."""
    origin = origin_of(source, lambda _: None)
    return family_for(source.model) if origin is None else origin.family


def check_one_model(source: Model, key: str) -> None:
    """Raise `UserError` for a mixture of models; `key` names what takes one model, for messages."""
    if isinstance(source, SavedWeights) and source.mixed:
        raise UserError(f"{key}: {named(source.path)} is {source.description}; expected one model")


def replaced_weights(base: Model, folder: Path) -> TensorWeights:
    """Other weights of a model, in a folder of Hugging Face's `.safetensors` files alone.

    Raises:
        UserError: a tensor of the model is missing there, or of another shape; or the model is a mixture.
    """
    check_one_model(base, "new weights")
    tensors, files = tensors_of(family_of(base), base.model), TensorFiles(folder)
    for one in tensors:
        stored = files.tensors.get(one.name)
        if stored is None or stored.shape != one.laid.shape:
            what = "not there" if stored is None else str(list(stored.shape))
            raise UserError(
                f"{named(folder)}: the tensor {one.name} is {what}; expected {list(one.laid.shape)}, as of "
                f"{named(base.path)}"
            )
    return TensorWeights(base.model, tensors, files, {one.name: one.name for one in tensors})
