"""Weights of a run as files for a server, which process 0 writes a layer at a time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import finalize

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxpar.checkpoint.processes import is_first, run_on_process_0
from jaxpar.config import UserError
from jaxpar.config.kinds import layer_kinds
from jaxpar.config.schema import ModelConfig
from jaxpar.config.spelling import named
from jaxpar.interop.config_json import family_for
from jaxpar.interop.conversion.export import DTYPE_NAMES, Export
from jaxpar.interop.conversion.tokenizer_files import TokenizerFiles
from jaxpar.interop.mapping.family import tensors_of
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import LAYER_PREFIX
from jaxpar.interop.sources.full_matrices import full_matrix_model
from jaxpar.interop.sources.open_source import origin_of
from jaxpar.mesh.parameters import Weights
from jaxpar.training.named_weights import NamedWeights
from jaxpar.training.run.run import Run

SHARD_BYTES = 5 * 10**9
"""Bytes of a file of weights, at most."""


@dataclass(frozen=True, eq=False)
class Version:
    """Weights on disk, for as long as anything may ask for them."""

    folder: Path
    scores: np.ndarray
    """Log-probabilities of the fixed prompt."""

    def __post_init__(self) -> None:
        finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class RunWeights:
    """Weights of a run, read by name as `WeightSource` has them, from the devices of all processes.

    Process 0 reads, each time one layer or one weight outside the layers; the others `follow` it meanwhile.
    """

    def __init__(self, run: Run, weights: Weights):
        self.model: ModelConfig = run.config.model
        on_device = jax.tree.map(partial(_on_device, DTYPE_NAMES[run.plan.dtypes.compute]), weights)
        self._weights = NamedWeights(on_device, run.layout)

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        """See `WeightSource`."""
        if layers is None:
            return self._asked(weight, None)[region]
        kinds = layer_kinds(self.model)
        rows = [(kinds[layer], kinds[:layer].count(kinds[layer])) for layer in layers]
        of_kind = lambda kind: f"{LAYER_PREFIX}{kind}.{weight.removeprefix(LAYER_PREFIX)}"
        return np.stack([self._asked(of_kind(kind), row)[region] for kind, row in rows])

    def follow(self) -> None:
        """Take part in what process 0 reads, until it sends None. Raises `CheckpointError` where it failed."""
        while (asked := run_on_process_0(_on_another)) is not None:
            self._part(*asked)

    def _asked(self, name: str, layer: int | None) -> np.ndarray:
        run_on_process_0(lambda: [name, layer])
        return self._part(name, layer)

    def _part(self, name: str, layer: int | None) -> np.ndarray:
        return self._weights[name] if layer is None else self._weights.layer(name, layer)


def write_version(run: Run, weights: Weights, folder: Path, scores: np.ndarray) -> Version | None:
    """Weights of a run in a new folder, in its compute dtype; None on processes but the first, which all call this.

    Args:
        run: whose weights they are.
        weights: all weights of the model.
        folder: the folder of all versions, made where it is missing.
        scores: log-probabilities of the fixed prompt.

    Raises:
        UserError: the folder cannot be written, or no format has the model; on every process.
    """
    source = RunWeights(run, weights)
    export = _export(run, source)
    if not is_first():
        source.follow()
        return None
    version, failure = None, None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        version = Version(Path(tempfile.mkdtemp(dir=folder, prefix=f"{run.config.run.name}-")), scores)
        version.folder.chmod(folder.stat().st_mode & 0o755)  # the server may be another user
        export.write_weights(version.folder, SHARD_BYTES)
    except OSError as error:
        failure = UserError(f"rl.sampler.folder: {named(folder)} cannot be written ({error.strerror or error})")
        failure.__cause__ = error
    except Exception as error:  # raised below, where the others hear of it
        failure = error

    def end() -> None:
        if failure is not None:
            raise failure

    run_on_process_0(end)
    return version


def _on_device(dtype: np.dtype, leaf: jax.Array) -> jax.Array:
    """A weight, or where it is in the memory of the host a copy on the devices in the dtype of the files."""
    where = leaf.sharding
    assert isinstance(where, NamedSharding), "weights are on a mesh"
    target = NamedSharding(where.mesh, where.spec)
    return leaf if where.memory_kind == target.memory_kind else jax.device_put(leaf, target).astype(dtype)


def _on_another() -> Any:
    raise AssertionError("process 0 reads, and does not follow")


def _export(run: Run, source: RunWeights) -> Export:
    """The files of weights, in the compute dtype of the run. Raises `UserError` for a model without a format."""
    model, dtype = full_matrix_model(run.config.model), DTYPE_NAMES[run.plan.dtypes.compute]
    origin = None if run.models.first is None else origin_of(run.models.first, lambda _: None)
    family = family_for(model) if origin is None else origin.family
    tensors = tensors_of(family, model)
    dtypes = {one.name: dtype for one in tensors}
    read: Any = source
    return Export(read, family, tensors, dtypes, {}, None, TokenizerFiles(None, None))
