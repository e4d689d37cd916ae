"""The other models of a run: the one that it begins with, and the one that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from jax.sharding import Mesh

from jaxpar.config.parts import OBJECTIVES
from jaxpar.interop.config_json import Difference
from jaxpar.interop.sources.adapted import base_facts, check_base
from jaxpar.interop.sources.open_source import Model, open_source
from jaxpar.interop.sources.source import check_fits
from jaxpar.layout.step_layout import StepLayout
from jaxpar.mesh.parameters import Weights
from jaxpar.training.residency.given_weights import INIT_FROM, frozen_weights
from jaxpar.training.run.reference import KEY, check_reference, reference_facts


class SourceModels:
    """The models of `run.init_from` and `loss.reference`, opened when they are first used.

    Args:
        layout: of the run.
    """

    def __init__(self, layout: StepLayout):
        self._layout, self._config = layout, layout.config
        self.differences: list[Difference] = []
        """In what else the model of `run.init_from` differs from the trained one, once it is opened."""

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
        """The model that the trained one is compared with under a loss of pairs: `loss.reference`, or `first`.

        Raises `UserError` where there is no such model.
        """
        if not OBJECTIVES[self._config.loss.name].pairs:
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
