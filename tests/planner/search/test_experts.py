"""Layouts of models with experts: the axis that splits them is searched, and what comes first is what it should be."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import ExpertLayout
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.report import words
from jaxpar.planner.search.asked import parse_avoided
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Choice, Group, Space
from jaxpar.planner.step_time.layer_times import Sort
from tests.planner.spaces import model_of, search_of
from tests.sentences import refused
from tests.small_run import with_experts

MIXTRAL = {
    "layers": 32, "embed": 4096, "heads": 32, "kv_heads": 8, "mlp": 14336, "vocab": 32000,
    "experts": ExpertsConfig(count=8, per_token=2),
}  # fmt: skip
QWEN = {
    "layers": 48, "embed": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "mlp": 6144, "vocab": 151936,
    "qk_norm": True, "experts": ExpertsConfig(count=128, per_token=8, width=768),
}  # fmt: skip
SMALL = {"layers": 4, "experts": ExpertsConfig(count=8, per_token=2, width=1024)}


def config_of(model: dict[str, Any], rows: int, **parallel: object) -> Config:
    return model_of(model=model, data={"sequence_length": 4096, "batch_size": rows, "packed": False}, parallel=parallel)


@cache
def first(name: str, cluster: str, rows: int, **fixed: int) -> Planned:
    """The best layout of Mixtral-8x7B's or Qwen3-30B-A3B's shape, whose products a kernel computes."""
    model = {"mixtral": MIXTRAL, "qwen3": QWEN}[name]
    return search_of(config_of(model, rows, experts={"backend": "mosaic"}), cluster, None, **fixed).best(1)[0]


MANY = [(name, cluster) for cluster in ("h100:2x8", "h100:8x8") for name in ("qwen3", "mixtral")]
LONG = pytest.mark.long


@pytest.mark.parametrize(("name", "cluster"), [MANY[0], *(pytest.param(*row, marks=LONG) for row in MANY[1:])])
def test_with_many_tokens_on_a_gpu_weights_travel_and_tokens_stay(name: str, cluster: str):
    """16k tokens or more in a microbatch: gathers of a layer's experts hide behind its products, and two all-to-alls of
    its tokens would not."""
    best = first(name, cluster, 256)
    layout = best.candidate.layout
    assert (layout.expert, layout.tensor, layout.pipe, layout.zero) == (1, 1, 1, 3)
    assert best.candidate.time.breakdown["exchange"] == 0.0
    exchanged = first(name, cluster, 256, expert=8).candidate.time
    assert exchanged.breakdown["exchange"] > 0.0 and exchanged.seconds > best.candidate.seconds


@pytest.mark.parametrize("name", ["qwen3", pytest.param("mixtral", marks=LONG)])
def test_with_few_tokens_on_a_gpu_experts_are_split(name: str):
    """4k tokens a GPU and step: a gather of all experts takes longer than their products."""
    best = first(name, "h100:8x8", 64)
    layout, time = best.candidate.layout, best.candidate.time
    assert layout.expert >= 4
    assert 0 < time.breakdown["exchange"] < 0.4 * time.seconds
    assert best.plan.experts["all"].capacity == 2.0


def search(rows: int = 16, cluster: str = "h100:1x8", avoided: str = "", **fixed: object) -> Search:
    found = search_of(config_of(SMALL, rows), cluster, None, **fixed)
    return Search(replace(found.space, avoided=parse_avoided([avoided] if avoided else [])))


def test_the_axis_can_be_fixed_and_left_out():
    assert search(expert=4).best(1)[0].plan.axes.expert == 4
    assert {group.expert for group in search(avoided="expert").space.groups()} == {1}
    assert {group.expert for group in search_of(model_of()).space.groups()} == {1}, "dense: fsdp by another name"


def test_what_is_asked_of_the_exchange_is_planned_and_timed():
    """A plan has the exchange that its time was predicted for; less balance takes longer."""
    asked = {"experts": {"capacity": 1.25, "exchange": "all_to_all"}}
    even, uneven = (
        search_of(config_of(SMALL, 16, **with_experts(asked, imbalance=factor)), expert=8).best(1)[0]
        for factor in (1.0, 1.2)
    )
    chosen = even.plan.experts["all"]
    assert isinstance(chosen, ExpertLayout) and (chosen.exchange.name, chosen.capacity) == ("all_to_all", 1.25)
    assert even.config.parallel.experts.capacity == 1.25
    assert even.candidate.seconds < uneven.candidate.seconds
    assert uneven.candidate.layout.imbalance == uneven.config.parallel.experts.imbalance == 1.2


@pytest.mark.parametrize(("key", "value"), [("own_rows", "first"), ("slices", 4)])
def test_layouts_that_cannot_exchange_as_they_are_asked_to_are_left_out(key: str, value: Any):
    """A planned layout does what is named, and where none can the sentence names it."""
    space = Space(config_of(SMALL, 16, experts={key: value}), named_cluster("h100:1x8"))
    best = Search(space).best(1)[0]
    chosen = best.plan.experts["all"]
    assert chosen.slices.name > 1 and best.plan.axes.expert > 1
    assert getattr(best.config.parallel.experts, key) == value
    assert chosen.own_first.name or key == "slices"
    with refused(f"parallel.experts.{key} ({value}), which takes expert above 1"):
        Search(Space(space.config, space.cluster, {"expert": "1"})).best(1)


ON_ONE_AXIS = {"pipe": 1, "tensor": 1, "context": 1, "expert": 1, "zero": 3, "microbatch": 4, "remat": "none"}


@pytest.mark.parametrize("backend", ["auto", "xla", "mosaic"])
def test_the_products_that_are_timed_are_those_of_the_plan(backend: str):
    """A loop of plain XLA where the plan has no kernel, as an explanation of it says."""
    config = config_of(SMALL, 64, experts={"backend": backend})
    one = search_of(config, "h100:1x4", **ON_ONE_AXIS).best(1)[0]
    (experts,) = one.plan.experts.values()
    assert one.candidate.layout.expert_loop is (experts.products.name == "xla")
    assert any("timed as those of xla" in line for line in words.exchanges(one.plan, config.parallel)) is (
        one.candidate.layout.expert_loop
    )


def test_making_products_of_experts_again_costs_what_they_take_in_a_step():
    """A loop of plain XLA takes longer than a kernel, also in the backward."""
    again = {}
    for backend in ("xla", "mosaic"):
        found = search_of(config_of(SMALL, 64, experts={"backend": backend}), "h100:1x4")
        planner = found.activations(Group(1, 1, 4, 1, 1, 4), Choice(3, "allgather"))
        (again[backend],) = (one.seconds for one in planner.costs["all"].recomputations if "expert_up" in one.outputs)
        time = found.timer.steps().layers(planner.layout("none")).times[Sort("all")]
        assert again[backend] == pytest.approx(time.again(frozenset(["expert_up"])).seconds)
    assert again["xla"] > again["mosaic"]
