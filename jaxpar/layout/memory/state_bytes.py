"""Bytes of the state between steps, from shapes alone."""

from __future__ import annotations

from math import prod

import jax

from jaxpar.hardware.host import PINNED
from jaxpar.layout.step_layout import StepLayout


def state_bytes(layout: StepLayout) -> int:
    """Bytes of one device's master weights and moments, wherever they are, and of its frozen weights."""
    return bytes_of(jax.tree.leaves(layout.abstract_state()))


def frozen_bytes(layout: StepLayout) -> int:
    """The part of them that is frozen weights."""
    return bytes_of(jax.tree.leaves(layout.abstract_state().frozen))


def offloaded_state_bytes(layout: StepLayout, *, master_alone: bool = False) -> int:
    """The part of them that is in pinned memory of the host, or on disk; or of that part only the master weights."""
    state = layout.abstract_state()
    leaves = jax.tree.leaves(state.master if master_alone else state)
    return bytes_of([leaf for leaf in leaves if leaf.sharding.memory_kind == PINNED])


def bytes_of(leaves: list[jax.ShapeDtypeStruct]) -> int:
    """Of arrays, on one device."""
    return sum(prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
