"""Statistics that layers collect in their backward."""

from __future__ import annotations

from typing import Any, Protocol, Self

from jaxtyping import Array, Bool, Int


class Observed(Protocol):
    """A tree of statistics of a layer, or of all layers of the model.

    A layer takes zeros of this form, and the cotangents of these zeros are what it observed.
    """

    def with_layer(self, number: Int[Array, ""], new: Any, counted: Bool[Array, ""]) -> Self:
        """The statistics of all layers, with those of one pass through layer `number` where it is `counted`."""
        ...

    def over_ranks(self, others: Any) -> Any:
        """The statistics of all ranks, joined to `others`, which the step collected outside of the layers."""
        ...


class ZerosObserved(Protocol):
    """Makes the zeros: `zeros()` for one layer, `zeros(layers)` for all layers of the model."""

    def __call__(self, *layers: int) -> Any: ...
