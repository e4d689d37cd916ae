"""Trees of arrays that must be the same to the last bit."""

from __future__ import annotations

from typing import Any

import chex
import jax
import numpy as np


def assert_same_bits(found: Any, wanted: Any) -> None:
    """Two trees have one structure, and their leaves one shape, one dtype and the same bytes.

    Unlike equal numbers: a NaN is itself, and 0 is not -0.
    """
    found, wanted = jax.tree.map(np.asarray, (found, wanted))
    chex.assert_trees_all_equal_shapes_and_dtypes(found, wanted)
    chex.assert_trees_all_equal(jax.tree.map(_bytes, found), jax.tree.map(_bytes, wanted))


def _bytes(leaf: np.ndarray) -> np.ndarray:
    return np.frombuffer(leaf.tobytes(), np.uint8)
