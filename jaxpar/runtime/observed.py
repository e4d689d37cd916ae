"""Statistics that layers collect in their backward."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any, Protocol, Self

import jax
from jaxtyping import Array, Bool, Int


class Observed(Protocol):
    """A tree of statistics of a layer, or of all layers of the model.

    A layer takes zeros of this form, and the cotangents of these zeros are what it observed.
    """

    def with_layer(self, number: Int[Array, ""], new: Any, counted: Bool[Array, ""]) -> Self:
        """The statistics of all layers, with those of one pass through layer `number` where it is `counted`."""
        ...

    def joined_to(self, other: Any) -> Self:
        """The statistics of two uses of one tensor."""
        ...

    def over_ranks(self, others: Any) -> Any:
        """The statistics of all ranks, joined to `others`, which the step collected outside of the layers."""
        ...


class ZerosObserved(Protocol):
    """Makes the zeros: `zeros()` for one layer, `zeros(layers)` for all layers of the model."""

    def __call__(self, *layers: int) -> Any: ...


def for_each_use[O: Observed](zeros: O, uses: int) -> tuple[O, ...]:
    """`zeros` once for each use; their cotangents are joined (`Observed.joined_to`)."""
    return _copies(uses, zeros)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _copies(uses: int, zeros: Any) -> tuple[Any, ...]:
    return (zeros,) * uses


def _forward(uses: int, zeros: Any) -> tuple[tuple[Any, ...], None]:
    return _copies(uses, zeros), None


def _backward(uses: int, residuals: None, observed: tuple[Any, ...]) -> tuple[Any]:
    del uses, residuals
    return (reduce(lambda a, b: a.joined_to(b), observed),)


_copies.defvjp(_forward, _backward)
