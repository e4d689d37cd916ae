"""The search over what layers keep, against trying everything."""

import time
from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from jaxpar.config.errors import UserError
from jaxpar.config.plan import AxisSizes
from jaxpar.config.presets import PRESETS as MODELS
from jaxpar.config.schema import Config, DataConfig
from jaxpar.cost.layer_case import LayerCase
from jaxpar.cost.recomputation import layer_costs
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.memory.costs import LayerCosts, Recomputation
from jaxpar.memory.pareto import NothingFits, Point, cheapest, layer_frontier, point_of
from jaxpar.memory.remat import PRESETS, remat_map
from tests.memory.shapes import layer_shape
from tests.sentences import refused

type Triple = tuple[int, int, int]


def model_costs(model: str = "llama3-8b", axes: AxisSizes | None = None) -> LayerCosts:
    axes = axes or AxisSizes(fsdp=8)
    shape = layer_shape(Config(model=MODELS[model], data=DataConfig(sequence_length=8192)), axes, rows=1)
    return layer_costs(LayerCase(shape, "allgather"), parse_cluster("h100:8x8"))


@st.composite
def small_costs(draw: st.DrawFn, most: int = 3) -> LayerCosts:
    """A layer with an input, up to `most` activations, the last two sometimes of one kernel, and small numbers."""
    number = draw(st.integers(1, most))
    names = [f"a{i}" for i in range(number)]
    joint = number > 1 and draw(st.booleans())
    groups = [(name,) for name in names] if not joint else [*((n,) for n in names[:-2]), tuple(names[-2:])]
    return LayerCosts(
        sizes={name: draw(st.integers(0, 6)) for name in ("layer_input", *names)},
        recomputations=[Recomputation(group, float(draw(st.integers(0, 6)))) for group in groups],
        forward_seconds=float(draw(st.integers(0, 3))),
        backward_seconds=float(draw(st.integers(0, 6))),
        host_bandwidth=float(draw(st.sampled_from([1, 2]))),
    )


def everything(costs: LayerCosts, offload: bool = True) -> Iterator[Point]:
    """All choices for one layer, sensible or not."""
    own = ("save", "offload") if offload else ("save",)
    inner = (*own, "recompute")
    for treatments in product(own, *[inner] * (len(costs.sizes) - 1)):
        yield point_of(costs, dict(zip(costs.sizes, treatments, strict=True)))


def triple(point: Point) -> Triple:
    return point.device_bytes, point.picoseconds, point.host_bytes


def undominated(points: list[Triple]) -> set[Triple]:
    own = set(points)
    return {p for p in own if not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in own)}


@settings(deadline=None, max_examples=60)
@given(small_costs(most=4), st.booleans())
def test_the_frontier_of_a_layer_is_what_trying_everything_leaves(costs: LayerCosts, offload: bool):
    frontier = layer_frontier(costs, offload=offload)
    assert {triple(p) for p in frontier} == undominated([triple(p) for p in everything(costs, offload)])
    assert len({triple(p) for p in frontier}) == len(frontier)
    for point in frontier:
        assert point_of(costs, point.named(costs)) == point


@settings(deadline=None, max_examples=60)
@given(small_costs(), st.integers(0, 40), st.integers(0, 20), st.sampled_from([1, 2, 3]))
def test_the_cheapest_choice_is_what_trying_everything_finds(costs: LayerCosts, budget: int, host: int, layers: int):
    """Two layers may each do anything; of three, two are alike."""
    points = undominated([triple(p) for p in everything(costs, host > 0)])
    totals = [
        tuple(map(sum, zip(*chosen, strict=True)))
        for chosen in combinations_with_replacement(points, layers)
        if len(set(chosen)) <= 2
    ]
    fitting = [t for t in totals if t[0] <= budget and t[2] <= host]
    if not fitting:
        with pytest.raises(NothingFits) as caught:
            cheapest(costs, layers, budget, host)
        assert caught.value.least_bytes == min(t[0] for t in totals if t[2] <= host)
        return
    runs = cheapest(costs, layers, budget, host)
    each = [(n, point_of(costs, treatments)) for n, treatments in runs]
    assert sum(n for n, _ in each) == layers
    assert sum(n * p.device_bytes for n, p in each) <= budget
    assert sum(n * p.host_bytes for n, p in each) <= host
    assert sum(n * p.picoseconds for n, p in each) == min(t[1] for t in fitting)


def no_worse(point: Point, other: Point) -> bool:
    """Whether it is nowhere worse than the other."""
    return all(a <= b for a, b in zip(triple(point), triple(other), strict=True))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("model", ["llama3-8b", "gpt3-175b"])
def test_each_preset_is_searched_and_none_beats_the_frontier(model: str, preset: str):
    costs = model_costs(model)
    own = point_of(costs, remat_map(preset, costs.sizes))
    assert any(no_worse(point, own) for point in layer_frontier(costs))
    assert any(no_worse(point, own) for point in layer_frontier(costs, offload=False))
    runs = cheapest(costs, 32, 32 * own.device_bytes)
    assert sum(n * point_of(costs, treatments).picoseconds for n, treatments in runs) <= 32 * own.picoseconds


def test_the_ends_of_the_frontier_are_full_and_none_but_for_what_a_fused_kernel_recomputes_for_nothing():
    costs = model_costs()
    frontier = layer_frontier(costs, offload=False)
    assert frontier[0] == point_of(costs, remat_map("full", costs.sizes))
    free = {"mlp_activated": "recompute"}
    assert frontier[-1] == point_of(costs, remat_map("none", costs.sizes) | free)  # pyright: ignore[reportOperatorIssue]
    assert [p.picoseconds for p in frontier] == sorted((p.picoseconds for p in frontier), reverse=True)


def test_host_memory_is_used_for_as_much_as_a_layer_hides():
    costs = model_costs()
    hidden = costs.host_bandwidth * costs.forward_seconds
    everything = sum(costs.sizes.values())
    worth = everything - costs.sizes["mlp_activated"]  # which costs nothing to recompute
    ((_, treatments),) = cheapest(costs, 1, round(worth - 0.9 * hidden), everything)
    point = point_of(costs, treatments)
    assert point.seconds == 0
    assert 0.9 * hidden <= point.host_bytes <= hidden
    beyond = point_of(costs, dict.fromkeys(costs.sizes, "offload"))
    assert beyond.seconds == pytest.approx(costs.exposed_seconds(everything))
    assert beyond.seconds > 0


def test_layers_that_offload_more_come_first():
    runs = cheapest(model_costs(), 32, 10**10, 10**9)
    hosts = [point_of(model_costs(), treatments).host_bytes for _, treatments in runs]
    assert len(runs) == 2
    assert hosts == sorted(hosts, reverse=True)


def test_what_cannot_fit_states_how_much_the_least_takes():
    costs = model_costs()
    with refused("memory.remat", "2147483648 bytes", "1000000000", error=NothingFits) as caught:
        cheapest(costs, 32, 10**9)
    assert caught.value.least_bytes == 32 * costs.sizes["layer_input"]
    assert isinstance(caught.value, UserError)


def test_eighty_layers_are_searched_in_two_seconds():
    costs = model_costs("llama3-70b", AxisSizes(fsdp=8, tensor=8))
    everything = sum(costs.sizes.values())
    began = time.process_time()
    runs = cheapest(costs, 80, 80 * everything // 3, 10 * everything)
    assert time.process_time() - began < 8  # 2 on a machine of its own; this one is shared
    assert sum(n for n, _ in runs) == 80


@pytest.mark.parametrize("share", [0.7, 0.55, 0.25])
@pytest.mark.parametrize("host_share", [0.0, 0.1])
def test_more_kinds_of_layers_would_gain_next_to_nothing(share: float, host_share: float):
    """No choice at all takes less than the linear relaxation, in which layers are divisible and of any kinds."""
    costs = model_costs()
    layers, everything = 32, sum(model_costs().sizes.values())
    budget, host = (round(part * layers * everything) for part in (share, host_share))
    points = np.array([triple(p) for p in layer_frontier(costs, offload=host > 0)], float).T
    least = linprog(
        points[1], A_ub=points[[0, 2]], b_ub=[budget, host], A_eq=np.ones((1, points.shape[1])), b_eq=[layers]
    ).fun
    runs = cheapest(costs, layers, budget, host)
    found = sum(n * point_of(costs, treatments).picoseconds for n, treatments in runs)
    assert least * (1 - 1e-9) <= found <= 1.04 * least
