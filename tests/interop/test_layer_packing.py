"""The shortest pattern of a list of layers."""

import numpy as np
import pytest

from jaxpar.config.schema.model import Pattern
from jaxpar.interop.mapping.layer_packing import pattern_of


@pytest.mark.parametrize(
    ("kinds", "pattern"),
    [
        ("abab", Pattern(("a", "b"))),
        ("aab" * 3 + "a", Pattern(("a", "a", "b"), suffix=("a",))),
        ("b" + "ca" * 4, Pattern(("c", "a"), prefix=("b",))),
    ],
)
def test_the_shortest_pattern_is_found(kinds: str, pattern: Pattern):
    assert pattern_of(list(kinds)) == pattern


def test_the_pattern_of_thousands_of_layers_in_no_order_is_found_at_once():
    kinds = np.random.default_rng(0).choice(["a", "b"], 3000).tolist()
    pattern = pattern_of(kinds)
    rest = len(kinds) - len(pattern.prefix) - len(pattern.suffix)
    assert [*pattern.prefix, *pattern.unit * (rest // len(pattern.unit)), *pattern.suffix] == kinds
