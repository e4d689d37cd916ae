"""The search for the most layers that fit, with sizes by decree: nothing is compiled."""

from math import inf

import pytest

from benchmarks.largest import most_layers, most_on_the_host


class Sizes:
    """The need of a number of layers, and what was asked; beyond a depth there comes something on top."""

    def __init__(self, jump_at: int, jump: int):
        self.jump_at, self.jump, self.asked = jump_at, jump, []

    def __call__(self, layers: int) -> int:
        self.asked.append(layers)
        return 50 + 10 * layers + (self.jump if layers >= self.jump_at else 0)


@pytest.mark.parametrize("jump", [0, -25, 35])
@pytest.mark.parametrize("limit", [65, 160, 305, 1000])
def test_as_many_layers_as_go_in_and_not_one_more(limit: int, jump: int) -> None:
    sizes = Sizes(jump_at=15, jump=jump)
    layers = most_layers(sizes, limit)
    assert sizes(layers) <= limit < sizes(layers + 1)
    assert len(set(sizes.asked)) <= 8


def test_nothing_where_not_even_one_layer_fits() -> None:
    assert most_layers(Sizes(100, 0), 55) == 0


def test_the_host_may_be_full_first() -> None:
    on_host = lambda layers: 40 + 7 * layers
    assert most_on_the_host(on_host, 700) == 94
    assert most_on_the_host(lambda layers: 0, 700) == inf
    sizes = Sizes(100, 0)
    assert most_layers(sizes, 1000, most=94) == 94 and sizes.asked[-1] == 94
    assert most_layers(sizes, 305, most=94) == 25
