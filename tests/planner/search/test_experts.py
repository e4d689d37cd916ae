"""Layouts of models with experts: the axis that splits them is searched, and what comes first is what it should be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jaxpar.config import Config
from jaxpar.config.plan import ExpertLayout
from jaxpar.config.schema.experts import ExpertsConfig
from jaxpar.config.schema.layout import MatmulOptions
from jaxpar.layout.plan_file import write
from jaxpar.memory.layer_shape import NO_CODES, ExpertCodes
from jaxpar.planner.layout import Layout
from jaxpar.planner.machine import named_cluster
from jaxpar.planner.report import words
from jaxpar.planner.report.document import planned_file
from jaxpar.planner.report.explain import print_explanation
from jaxpar.planner.report.page import html_page
from jaxpar.planner.report.text import print_plans
from jaxpar.planner.search.avoid import parse_avoided
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.search import Search
from jaxpar.planner.search.space import Space
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
    assert best.plan.experts[""].capacity == 2.0


def search(rows: int = 16, cluster: str = "h100:1x8", avoided: str = "", **fixed: object) -> Search:
    found = search_of(config_of(SMALL, rows), cluster, None, **fixed)
    return Search(replace(found.space, avoided=parse_avoided([avoided] if avoided else [])))


def test_experts_divide_among_their_ranks():
    space = search(cluster="h100:2x8").space
    groups = space.groups()
    assert {group.expert for group in groups} == {1, 2, 4, 8}
    broken = space._broken(dict.fromkeys(space.axes, 1) | {"expert": 16})
    assert any("model.experts.count (8) over expert" in why for why in broken)
    assert all(16 % (group.data * group.microbatch) == 0 for group in groups)


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
    chosen = even.plan.experts[""]
    assert isinstance(chosen, ExpertLayout) and (chosen.exchange.name, chosen.capacity) == ("all_to_all", 1.25)
    assert even.config.parallel.experts.capacity == 1.25
    assert even.candidate.seconds < uneven.candidate.seconds
    assert uneven.candidate.layout.imbalance == uneven.config.parallel.experts.imbalance == 1.2


def test_codes_of_experts_are_timed_by_what_multiplies_them():
    """No record states that the kernel was right on a GPU, so `auto` multiplies what the codes stand for, and is slower
    than without FP8; with the kernel named, products are faster. Its squares have to fit into a rank's width."""

    def timed(**precision: object) -> tuple[Layout, float]:
        config = config_of(SMALL | {"embed": 1024}, 64)
        config = replace(config, precision=replace(config.precision, **precision))
        best = search_of(config, fsdp=8).best(1)[0]
        return best.candidate.layout, best.candidate.time.breakdown["matmuls"]

    kernel = MatmulOptions(backend="mosaic")
    (layout, plain), (auto, as_numbers), (named, as_codes) = (
        timed(), timed(matmul="fp8_block"), timed(matmul="fp8_block", matmul_options=kernel)
    )  # fmt: skip
    assert layout.expert_codes == NO_CODES
    assert auto.expert_codes == ExpertCodes(("experts_in", "experts_out"))
    assert named.expert_codes == ExpertCodes(("experts_in", "experts_out"), by_kernel=True, gradients_by_kernel=True)
    of_rows, _ = timed(matmul="fp8_current", matmul_options=kernel)  # whose scales are no factor of gradients
    assert of_rows.expert_codes == ExpertCodes(("experts_in", "experts_out"), by_kernel=True)
    assert as_codes < 0.95 * as_numbers and as_numbers == pytest.approx(plain, rel=1e-6)


def test_the_screen_the_page_and_an_explanation_have_the_exchange(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = search(expert=4)
    plans = found.best(1)
    exchange = plans[0].plan.experts[""].exchange.name
    line, *others = words.exchanges(plans[0].plan, plans[0].config.parallel)
    assert bool(others) == (plans[0].plan.experts[""].products.name == "xla")
    assert exchange in line and "with equal load" in line and "experts.imbalance" in line
    assert line in html_page(plans, found.evaluated, found.timer)
    write(tmp_path / "plan.json", planned_file(plans[0], "h100:1x8"))
    print_plans(plans, found.effort, Console(width=300))
    print_explanation(tmp_path / "plan.json", Console(width=300))
    printed = capsys.readouterr().out
    assert printed.count(line) == 2 and printed.count(words.MEANINGS["exchange"]) >= 2
    assert "expert" in (words.without_evidence(plans) or "")


def test_schedules_that_split_the_backward_are_searched():
    names = {name for name, _ in search().space.schedules(2, 8)}
    assert {"1f1b", "interleaved", "zb-h1", "zb-v", "zb-uniform"} <= names


def test_a_layout_is_its_expert_axis_for_a_user():
    one, other = Layout(fsdp=8), Layout(expert=8)
    assert one.data == other.data and one != other
    found = search().best(4)
    assert len({one.candidate.key for one in found}) == 4


ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "own rows first": (
        {"experts": {"own_rows": "first"}},
        "parallel.experts.own_rows (first), which takes expert above 1",
    ),
    "slices": ({"experts": {"slices": 4}}, "parallel.experts.slices (4), which takes expert above 1"),
}


@pytest.mark.parametrize("name", ASKED)
def test_layouts_that_cannot_exchange_as_they_are_asked_to_are_left_out(name: str):
    """A planned layout does what is named, and where none can the sentence names it."""
    asked, why = ASKED[name]
    space = Space(config_of(SMALL, 16, **asked), named_cluster("h100:1x8"))
    options = asked["experts"]
    own = options.get("own_rows") == "first"
    found = {(group.expert, group.tensor) for group in space.groups()}
    assert {expert for expert, _ in found} == ({4, 8} if own else {2, 4, 8}), "of two ranks all_gather sends less"
    assert {tensor for _, tensor in found} == ({1} if own else {1, 2, 4})
    best = Search(space).best(1)[0]
    chosen = best.plan.experts[""]
    assert chosen.slices.name > 1
    experts = best.config.parallel.experts
    assert experts.slices == options.get("slices", "auto")
    assert experts.own_rows == best.candidate.layout.expert_own_rows == ("first" if own else "auto")
    assert chosen.own_first.name or not own
    with refused(why):
        Search(Space(space.config, space.cluster, {"expert": "1"})).best(1)


def test_own_rows_are_not_first_of_an_exchange_or_slices_that_have_none():
    asked = {"experts": {"own_rows": "first", "slices": 1}}
    sizes = {"pipe": 1, "replica": 1, "fsdp": 1, "expert": 4, "context": 1, "tensor": 2}
    space = Space(config_of(SMALL, 16, **with_experts(asked, exchange="all_gather")), named_cluster("h100:1x8"))
    key = "parallel.experts.own_rows (first), which takes"
    assert set(space._broken_by_exchange(sizes)) == {
        f"{key} tensor 1", f"{key} parallel.experts.slices above 1", f"{key} another exchange than all_gather"
    }  # fmt: skip


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


def test_a_loop_over_experts_takes_longer_than_a_kernel():
    config = lambda backend: config_of(SMALL, 64, experts={"backend": backend})
    of = lambda backend: search_of(config(backend), "h100:1x4", **ON_ONE_AXIS).best(1)[0].candidate
    loop, kernel = of("xla"), of("mosaic")
    assert loop.time.breakdown["matmuls"] > 1.2 * kernel.time.breakdown["matmuls"]
    assert loop.time.breakdown["attention"] == kernel.time.breakdown["attention"]
