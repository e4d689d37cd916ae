"""Nested dicts of arrays, and their leaves by path."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Tree = dict[str, Any]
Path = tuple[str, ...]


def flatten(tree: Mapping[str, Any], prefix: Path = (), dtype: type = np.float64) -> dict[Path, np.ndarray]:
    """Leaves of a nested dict by their path, as copies in `dtype`."""
    leaves: dict[Path, np.ndarray] = {}
    for name, child in tree.items():
        if isinstance(child, Mapping):
            leaves |= flatten(child, (*prefix, name), dtype)
        else:
            leaves[(*prefix, name)] = np.array(child, dtype)
    return leaves


def unflatten(leaves: Mapping[Path, np.ndarray]) -> Tree:
    """Inverse of `flatten`."""
    tree: Tree = {}
    for path, leaf in leaves.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = leaf
    return tree
