"""Statistics that layers collect in their backward."""

from __future__ import annotations

from functools import reduce
from typing import Protocol, Self

from jaxtyping import Array, Bool, Int

from pallas_kernels.vjp_parts import custom_vjp


class Observed(Protocol):
    """A tree of statistics of a layer, or of all layers of the model.

    A layer takes zeros of this form, and the cotangents of these zeros are what it observed.
    """

    def with_layer(self, number: Int[Array, ""], new: Self, counted: Bool[Array, ""]) -> Self:
        """The statistics of all layers, with those of one pass through layer `number` where it is `counted`."""
        ...

    def joined_to(self, other: Self) -> Self:
        """The statistics of two uses of one tensor."""
        ...

    def over_ranks(self, others: Self | None) -> Self:
        """The statistics of all ranks, joined to `others`, which the step collected outside of the layers."""
        ...


class ZerosObserved(Protocol):
    """Makes the zeros: `zeros()` for one layer, `zeros(layers)` for all layers of the model."""

    def __call__(self, *layers: int) -> Observed: ...


@custom_vjp(1)
def for_each_use[O: Observed](zeros: O, uses: int) -> tuple[O, ...]:
    """`zeros` once for each use; their cotangents are joined (`Observed.joined_to`)."""
    return (zeros,) * uses


for_each_use.defvjp(
    lambda zeros, uses: ((zeros,) * uses, None),
    lambda uses, _, observed: (reduce(lambda a, b: a.joined_to(b), observed),),
)
