"""Upcycling: a dense model as one with experts that computes the same (arXiv:2212.05055; arXiv:2410.07524)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxpar.checkpoint.facts import CAME_FROM
from jaxpar.config.errors import UserError
from jaxpar.config.kinds import kind_models, layer_kinds
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema import Config
from jaxpar.config.spelling import named
from jaxpar.interop.conversion.converted import write_weights
from jaxpar.interop.conversion.derived import DerivedModel, initial_of_layer
from jaxpar.interop.mapping.form import Region
from jaxpar.interop.mapping.weight_names import weight_specs
from jaxpar.interop.sources.full_matrices import full_matrix_model, read_full_matrix
from jaxpar.interop.sources.open_source import Model
from jaxpar.interop.sources.source import Origin
from jaxpar.mesh.layer_order import LAYERS

PREFIX = f"{LAYERS}.mlp."
"""Prefix of the names of a feed-forward's weights."""


@dataclass(frozen=True)
class Upcycled(DerivedModel):
    """A dense model, read as one with experts: each is a copy of a slice of the feed-forward's hidden width.

    A router has the same logits for the slices of a copy, so that a token uses whole copies. With k experts per token
    and g slices, k/g copies have weights that add up to g^-1 for each slice; the matrices `down` are therefore
    multiplied by g, the factor of arXiv:2410.07524 for weights that are normalised.
    """

    granularity: int
    """Slices of a copy."""

    @property
    def description(self) -> str:
        return f"experts of {self.source.description}"

    @property
    def origin(self) -> Origin | None:
        """None: the family of the dense model has no experts."""
        return None

    @property
    def experts(self) -> ExpertsConfig:
        """Configuration of the model's experts."""
        assert self.model.experts is not None, "it has experts"
        return self.model.experts

    def write(self, folder: Path, report: Callable[[str], None]) -> None:
        """Write a checkpoint into a new folder."""
        config = replace(Config(), model=self.model)
        write_weights(self, config, {CAME_FROM: list(self.lineage)}, folder, report)

    def read(self, weight: str, layers: Sequence[int] | None, region: Region) -> np.ndarray:
        if layers is None or not weight.startswith(PREFIX):
            return read_full_matrix(self.source, weight, layers, region)
        return np.stack([self._layer_weight(weight, layer)[region] for layer in layers])

    def _layer_weight(self, weight: str, layer: int) -> np.ndarray:
        name, kind = weight.removeprefix(PREFIX), layer_kinds(self.model)[layer]
        spec, slices = weight_specs(self.model, kind)[weight], self.granularity
        if name == "router":
            copies = replace(spec, shape=(spec.shape[0], spec.shape[1] // slices))
            return np.repeat(initial_of_layer(weight, copies, layer, Config().run.seed), slices, axis=1)
        dense = weight_specs(full_matrix_model(self.source.model), kind)[weight]
        everything = tuple(slice(0, size) for size in dense.shape)
        (values,) = read_full_matrix(self.source, weight, [layer], everything)
        parts = np.split(values.astype(np.float32), slices, axis=dense.axes.index("mlp"))
        factor = np.float32(slices if name == "down" else 1)
        return np.stack([factor * parts[expert % slices] for expert in range(spec.shape[0])])


def plan_upcycling(source: Model, copies: int, granularity: int, per_token: int | None) -> Upcycled:
    """The experts of a dense model, before anything is read or written.

    Args:
        source: the dense model.
        copies: of its feed-forward.
        granularity: slices of a copy, each an expert.
        per_token: experts that a token uses; None is those of two copies.

    Raises:
        UserError: the model has experts already, or biases that experts do not have, or the numbers do not fit.
    """
    kinds = kind_models(source.model)
    for kind in kinds.values():
        if kind.experts is not None:
            raise UserError(
                f"MODEL: {named(source.path)} has {kind.experts.count} experts already; expected a dense model"
            )
        if kind.mlp_bias:
            raise UserError(
                f"MODEL: the feed-forward of {named(source.path)} has biases (model.mlp_bias), which its experts would "
                "add several times; expected a model without them"
            )
    widths = {kind.mlp for kind in kinds.values()}
    for width in sorted(widths):
        if width % granularity:
            raise UserError(f"--granularity: {granularity} does not divide the hidden width {width}")
    if granularity > 1 and len(widths) > 1:
        raise UserError(
            f"--granularity: {granularity}, and kinds of layers have hidden widths of {sorted(widths)}; expected 1"
        )
    chosen = min(2, copies) * granularity if per_token is None else per_token
    if chosen % granularity or chosen > copies * granularity:
        raise UserError(
            f"--per-token: expected a multiple of --granularity ({granularity}), so that a token uses whole copies, of "
            f"at most {copies * granularity} experts; got {chosen}"
        )
    width = None if granularity == 1 else widths.pop() // granularity
    experts = ExpertsConfig(count=copies * granularity, per_token=chosen, width=width)
    return Upcycled(source, replace(full_matrix_model(source.model), experts=experts), granularity)
