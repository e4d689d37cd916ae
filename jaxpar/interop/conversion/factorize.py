"""Matrices of a model as products of two (`model.low_rank`): by singular value decomposition, or drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np

from jaxpar.checkpoint.facts import CAME_FROM
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.schema import Config, ModelConfig
from jaxpar.config.spelling import named
from jaxpar.interop.conversion.converted import hf_facts, keep_hf_files, write_weights
from jaxpar.interop.conversion.derived import DerivedModel, initial_of_layer
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import weight_specs
from jaxpar.interop.sources.adapted import AdaptedWeights
from jaxpar.interop.sources.full_matrices import full_matrix_model, read_full_matrix
from jaxpar.interop.sources.open_source import Model
from jaxpar.interop.sources.saved_weights import SavedWeights
from jaxpar.interop.sources.source import Origin
from jaxpar.layers.counting import parameter_count
from jaxpar.layers.declaration.adaptation import OFF
from jaxpar.layers.declaration.part import factor_names
from jaxpar.layers.declared import declare_layer
from jaxpar.mesh.layer_order import LAYERS
from jaxpar.mesh.parameters import ParamSpec

CACHED_BYTES = 4 * 2**30
"""Limit of second factors cached in memory until they are written; beyond it, a matrix is decomposed again."""


@dataclass(frozen=True)
class Factorized(DerivedModel):
    """A model whose matrices, where `model.low_rank` names them, are read as factors.

    The source has the matrices themselves, or other factors, which are multiplied first.
    """

    solver: str
    """`svd`: the product is as near to the matrix as one of its rank can be; `random`: drawn as a new run's."""
    unfactorized: tuple[str, ...]
    """Matrices whose factors would not have fewer weights."""
    discarded: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    """Sums of squared singular values, of the discarded ones and of all, for each decomposed matrix, by its name and
    layer."""
    _waiting: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return f"factors of {self.source.description}"

    @property
    def origin(self) -> Origin | None:
        """Origin of the weights; None for those of a run, whose configuration names the model it began with."""
        return self.source.origin if self._run is None else None

    @property
    def weights_before(self) -> int:
        """Number of weights of the source."""
        return parameter_count(self.source.model, padded=False)

    @property
    def config(self) -> Config:
        """Configuration of the run that saved the weights, or a new one for the model."""
        return replace(self._run or Config(), lora=OFF, model=self.model)

    @property
    def _run(self) -> Config | None:
        """The configuration of the run whose weights these were; None where they were converted."""
        source = self.source
        if isinstance(source, AdaptedWeights) or (isinstance(source, SavedWeights) and source.origin is None):
            return source.config
        return None

    def write(self, folder: Path, report: Callable[[str], None]) -> None:
        """Write a checkpoint into a new folder, with the files of Hugging Face's format that the source has."""
        facts = {} if self.origin is None else hf_facts(self.origin)
        write_weights(self, self.config, {CAME_FROM: list(self.lineage), **facts}, folder, report)
        if self.origin is not None:
            keep_hf_files(self.origin, folder)

    def table(self) -> str:
        """A line for each name of matrices: its rank, its share of the weights, and what is lost; and those left."""
        lines = []
        for name, rank in self.model.low_rank.items():
            specs = _specs_of(self.source.model, name)
            share = max(rank * sum(_sides(spec)) / spec.size for spec in specs)
            lost = [pair for (matrix, _), pair in self.discarded.items() if matrix == name]
            error = (sum(out for out, _ in lost) / max(sum(total for _, total in lost), 1e-300)) ** 0.5
            words = f", relative error {error:.2g}" if self.solver == "svd" else ""
            lines.append(f"  {name:8} rank {rank}, {share:.0%} of its weights{words}")
        if self.unfactorized:
            lines.append(f"  not factorized, since factors would not be smaller: {', '.join(self.unfactorized)}")
        return "\n".join(lines)

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        matrix, is_second = _matrix_of(weight, self.model)
        if layers is None or matrix is None:
            return read_full_matrix(self.source, weight, layers, region)
        return np.stack([self._factor(matrix, is_second, layer)[region] for layer in layers])

    def _factor(self, matrix: str, is_second: bool, layer: int) -> np.ndarray:
        if self.solver == "random":
            return self._drawn(factor_names(matrix)[is_second], layer)
        if is_second and (matrix, layer) in self._waiting:
            return self._waiting.pop((matrix, layer))
        pair = self._decomposed(matrix, layer)
        if not is_second and sum(one.nbytes for one in self._waiting.values()) + pair[1].nbytes <= CACHED_BYTES:
            self._waiting[matrix, layer] = pair[1]
        return pair[is_second]

    def _decomposed(self, matrix: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """U sqrt(S) and sqrt(S) V^T of the largest singular values: both factors have the same norm."""
        name = matrix.rpartition(".")[2]
        spec = weight_specs(full_matrix_model(self.model), layer_kinds(self.model)[layer])[matrix]
        (values,) = read_full_matrix(self.source, matrix, [layer], tuple(slice(0, size) for size in spec.shape))
        rank, inputs, outputs = self.model.low_rank[name], spec.shape[: spec.inputs], spec.shape[spec.inputs :]
        u, s, vt = np.linalg.svd(values.astype(np.float32).reshape(_sides(spec)), full_matrices=False)
        squares = s.astype(np.float64) ** 2
        self.discarded[name, layer] = float(squares[rank:].sum()), float(squares.sum())
        root = np.sqrt(s[:rank])
        return (u[:, :rank] * root).reshape(*inputs, rank), (root[:, None] * vt[:rank]).reshape(rank, *outputs)

    def _drawn(self, factor: str, layer: int) -> np.ndarray:
        """The initial value that a new run draws with the configured seed."""
        spec = weight_specs(self.model, layer_kinds(self.model)[layer])[factor]
        return initial_of_layer(factor, spec, layer, self.config.run.seed)


def plan_factorization(
    source: Model, rank: int | None, share: float | None, solver: str, report: Callable[[str], None]
) -> Factorized:
    """The factors of a model's matrices, before anything is read or written.

    Args:
        source: the model.
        rank: of every product.
        share: in its place: the rank of a matrix is the largest whose factors have at most this share of its weights.
        solver: `svd` or `random`.
        report: takes a sentence about factors that the model has already.

    Raises:
        UserError: no matrix would have fewer weights.
    """
    if source.model.low_rank:
        names = ", ".join(source.model.low_rank)
        report(f"{named(source.path)} has products of two already ({names}): they are multiplied first.")
    ranks: dict[str, int] = {}
    left: list[str] = []
    for name in _matrix_names(source.model):
        specs = _specs_of(source.model, name)
        most = min(map(_saving_rank, specs))
        wanted = rank if rank is not None else min(int((share or 0) * spec.size / sum(_sides(spec))) for spec in specs)
        if 1 <= wanted <= most:
            ranks[name] = wanted
        else:
            left.append(name)
    if not ranks:
        most = max(min(map(_saving_rank, _specs_of(source.model, name))) for name in left)
        option = f"--rank: {rank}" if rank is not None else f"--share: {share:g}"
        raise UserError(
            f"{option} makes no matrix of {named(source.path)} smaller; there are {', '.join(left)}, and the largest "
            f"rank that does is {most}"
        )
    return Factorized(source, replace(source.model, low_rank=ranks), solver, tuple(left))


def _matrix_names(model: ModelConfig) -> list[str]:
    """The matrices of a model's layers, of all kinds."""
    layers = [declare_layer(full_matrix_model(kind)) for kind in kind_models(model).values()]
    return list(dict.fromkeys(name for layer in layers for part in layer.parts for name in part.matrix_names))


def _specs_of(model: ModelConfig, name: str) -> list[ParamSpec]:
    """The whole matrix of a name, in each kind of layers that has it."""
    layers = [declare_layer(full_matrix_model(kind)) for kind in kind_models(model).values()]
    return [part.weights[name] for layer in layers for part in layer.parts if name in part.matrix_names]


def _sides(spec: ParamSpec) -> tuple[int, int]:
    """Inputs and outputs of a matrix."""
    inputs = prod(spec.shape[: spec.inputs])
    return inputs, spec.size // inputs


def _matrix_of(weight: str, model: ModelConfig) -> tuple[str | None, bool]:
    """The matrix that a weight is a factor of, as `layers.mlp.up`, and whether it is the second; None of others."""
    prefix, _, name = weight.rpartition(".")
    for matrix in model.low_rank if prefix.startswith(LAYERS) else ():
        if name in factor_names(matrix):
            return f"{prefix}.{matrix}", name == factor_names(matrix)[1]
    return None, False


def _saving_rank(spec: ParamSpec) -> int:
    """The largest rank at which the two factors of a matrix have fewer weights than it; 0 if there is none."""
    inputs = prod(spec.shape[: spec.inputs])
    outputs = spec.size // inputs
    return (spec.size - 1) // (inputs + outputs)
