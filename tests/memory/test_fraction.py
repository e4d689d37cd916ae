"""A share of what layers keep goes to the host: whole layers from the first on, one in part, large arrays alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpar.config.plan import LayerRun
from jaxpar.memory.fraction import offload_share, saved_bytes

SIZES = {"input": 8, "query": 4, "key": 3, "lse": 1}
SAVED = dict.fromkeys(SIZES, "save")


def sized(runs: tuple[LayerRun, ...]) -> list[tuple[LayerRun, dict[str, int]]]:
    return [(run, SIZES) for run in runs]


def runs(layers: int, **activations: str) -> list[LayerRun]:
    return [LayerRun(layers, SAVED | activations)]  # pyright: ignore[reportArgumentType]


def test_the_first_layers_go_whole_and_one_in_part():
    found = offload_share(sized(runs(4)), 0.4, stays_below=2)
    assert [run.layers for run in found] == [1, 1, 2]
    offloaded = [{name for name, own in run.activations.items() if own == "offload"} for run in found]
    # 25.6 of 64 bytes: 15 of the first layer (its statistics stay), and as near as may be to 10.6 of the second.
    assert offloaded == [{"input", "query", "key"}, {"input", "key"}, set()]
    assert saved_bytes(found, SIZES, "offload") == 26


def test_what_is_recomputed_neither_counts_nor_goes():
    found = offload_share(sized(runs(2, query="recompute", key="recompute")), 1.0, stays_below=1)
    assert [run.layers for run in found] == [2]
    assert found[0].activations == {"input": "offload", "query": "recompute", "key": "recompute", "lse": "offload"}


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_nothing_or_everything_is_one_run(fraction: float):
    (run,) = offload_share(sized(runs(5)), fraction, stays_below=1)
    assert set(run.activations.values()) == {"offload" if fraction else "save"}


@given(fraction=st.floats(0, 1), layers=st.integers(1, 9), second=st.integers(0, 4))
def test_what_goes_is_within_half_of_the_smallest_array_or_all_that_may_go(fraction: float, layers: int, second: int):
    asked = [*runs(layers), *([LayerRun(second, SAVED | {"input": "recompute"})] if second else [])]  # pyright: ignore[reportArgumentType]
    found = offload_share(sized(asked), fraction, stays_below=2)
    assert sum(run.layers for run in found) == layers + second
    whole = saved_bytes(asked, SIZES)
    assert saved_bytes(found, SIZES) == whole
    moved = saved_bytes(found, SIZES, "offload")
    most = whole - (layers + second)  # the statistics stay
    assert moved == most or abs(moved - fraction * whole) <= 2
    assert moved <= most
