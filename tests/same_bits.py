"""Trees of arrays that must be the same, to the last bit or nearly."""

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


def worst_difference(found: Any, wanted: Any) -> tuple[float, str]:
    """Largest max|found - wanted| / max|wanted| over the leaves, and the leaf's name.

    A leaf counts as at least 1e-3 of the largest: without rotary embeddings the gradient of a key bias is exactly zero,
    and its rounding noise is not to be compared with itself.
    """
    wanted_leaves = jax.tree_util.tree_leaves_with_path(wanted)
    found_leaves = jax.tree.leaves(found)
    floor = 1e-3 * max(float(np.abs(leaf).max()) for _, leaf in wanted_leaves)
    differences = [
        (float(np.abs(a - b).max()) / max(float(np.abs(b).max()), floor), jax.tree_util.keystr(path))
        for a, (path, b) in zip(found_leaves, wanted_leaves, strict=True)
    ]
    return max(differences)


def apart(found: Any, wanted: Any) -> float:
    """The root of the sum of all squared differences, over that of the squares of what is wanted."""
    size = lambda tree: float(np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(tree))))
    return size(jax.tree.map(lambda a, b: a - b, found, wanted)) / size(wanted)


def _bytes(leaf: np.ndarray) -> np.ndarray:
    return np.frombuffer(leaf.tobytes(), np.uint8)
