"""Leaves of a state by name, and whether the saved leaves match the wanted ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import PyTree

from jaxpar.checkpoint.errors import CheckpointError

SEPARATOR = "/"


class Spec(NamedTuple):
    """Shape and dtype of a leaf; prints as `float32[8, 16]`."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


def named_leaves[Leaf](tree: PyTree[Leaf]) -> dict[str, Leaf]:
    """Leaves by their path, such as `master/layers/all/mlp/up`; a tree that is one leaf has the name "".

    Raises:
        ValueError: a key holds the separator, so that two leaves could have one name.
    """
    leaves = {}
    for path, leaf in tree_flatten_with_path(tree)[0]:
        for entry in path:
            if SEPARATOR in keystr((entry,), simple=True):
                raise ValueError(f"key {keystr((entry,), simple=True)!r} of the state holds {SEPARATOR!r}")
        leaves[keystr(path, simple=True, separator=SEPARATOR)] = leaf
    return leaves


def part[Leaf](leaves: Mapping[str, Leaf], name: str) -> dict[str, Leaf]:
    """The named leaves in the part `name` of the state."""
    return {
        leaf_name: leaf for leaf_name, leaf in leaves.items() if (leaf_name + SEPARATOR).startswith(name + SEPARATOR)
    }


def nest[Leaf](leaves: Mapping[str, Leaf]) -> dict[str, PyTree[Leaf]]:
    """Named leaves as nested dicts with string keys, the form in which Orbax holds them."""
    tree: dict[str, PyTree[Leaf]] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split(SEPARATOR)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def specs(leaves: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> dict[str, Spec]:
    """Shapes and dtypes of named arrays or of their stand-ins."""
    return {name: Spec(tuple(leaf.shape), np.dtype(leaf.dtype)) for name, leaf in leaves.items()}


def check_arrays(leaves: Mapping[str, object]) -> None:
    """Check that a state to be saved consists of JAX arrays of plain dtypes, each with at least one element.

    Raises:
        TypeError, ValueError: it does not; the leaf is named.
    """
    if not leaves:
        raise ValueError("the state has no leaves")
    for name, leaf in leaves.items():
        if not isinstance(leaf, jax.Array):
            raise TypeError(f"leaf {name} of the state is a {type(leaf).__name__}, not a jax.Array")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError(f"leaf {name} of the state has dtype {leaf.dtype}: save jax.random.key_data of it instead")
        if leaf.size == 0:
            raise ValueError(f"leaf {name} of the state has no elements (its shape is {list(leaf.shape)})")


def check_same(saved: Mapping[str, Spec], wanted: Mapping[str, Spec], checkpoint: str) -> None:
    """Check that the saved leaves match the wanted ones: same names, shapes and dtypes.

    Raises:
        CheckpointError: they are not; the first leaf is named, the others are counted.
    """
    problems = [
        f"leaf {name} is {saved[name]} in checkpoint {checkpoint}, but {spec} is wanted"
        for name, spec in wanted.items()
        if name in saved and saved[name] != spec
    ]
    problems += [
        f"checkpoint {checkpoint} has no leaf {name}, which is wanted as {spec}"
        for name, spec in wanted.items()
        if name not in saved
    ]
    problems += [
        f"checkpoint {checkpoint} holds a leaf {name} of {spec}, for which there is no place"
        for name, spec in saved.items()
        if name not in wanted
    ]
    if problems:
        others = len(problems) - 1
        more = f" ({others} other {'leaf differs' if others == 1 else 'leaves differ'} as well)" if others else ""
        raise CheckpointError(problems[0] + more)
