"""That `assert_same_bits` distinguishes what equal numbers do not."""

from typing import Any

import numpy as np
import pytest

from tests.same_bits import assert_same_bits

TREE = {"a": np.float32([0.0, np.nan]), "b": np.zeros((2, 3), np.int32)}


def test_a_nan_is_itself():
    assert_same_bits(TREE, {name: leaf.copy() for name, leaf in TREE.items()})


@pytest.mark.parametrize(
    "other",
    [
        TREE | {"a": np.float32([-0.0, np.nan])},
        TREE | {"b": np.zeros((2, 3), np.float32)},
        TREE | {"b": np.zeros((3, 2), np.int32)},
        TREE | {"c": np.zeros(1)},
    ],
    ids=["-0", "another dtype", "another shape", "one leaf more"],
)
def test_anything_else_fails(other: dict[str, Any]):
    with pytest.raises(AssertionError):
        assert_same_bits(other, TREE)
