"""How experts get their tokens is decided by the plan: what it takes, what runs, and what is refused."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import pytest

from jaxpar.config import Config
from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.plan import Choice, ExpertLayout, Plan
from jaxpar.config.schema.model import Pattern
from jaxpar.layout.choices.experts import expert_rows
from jaxpar.layout.given_plan import check_plan
from jaxpar.layout.make_plan import make_plan, resolve_config
from jaxpar.layout.stages import stages_of
from jaxpar.layout.step_layout import StepLayout
from tests.sentences import refused
from tests.small_run import small, with_experts

KINDS = {
    "kinds": {"dense": {"experts": None}, "routed": {}},
    "pattern": Pattern(prefix=("dense",), unit=("routed",)),
    "experts": ExpertsConfig(count=8, per_token=2, width=16),
}


@cache
def planned(exchange: str = "auto") -> tuple[Config, Plan]:
    """Layers of two kinds, one of them with experts."""
    parallel = {"expert": 4, "tensor": 2, "experts": {"exchange": exchange, "capacity": 1.5}}
    config = resolve_config(small(model=KINDS, parallel=parallel), 8)
    return config, make_plan(config, jax.devices()[0], 8)


def test_a_plan_decides_for_each_kind_of_layers_with_experts() -> None:
    _, plan = planned()
    assert list(plan.experts) == ["routed"]
    assert (plan.experts["routed"].exchange.name, plan.experts["routed"].capacity) == ("all_to_all", 1.5)
    assert "all_gather" in plan.experts["routed"].exchange.reason
    assert planned("all_gather")[1].experts["routed"].exchange.name == "all_gather"
    assert make_plan(resolve_config(small(parallel={"fsdp": 8}), 8), jax.devices()[0]).experts == {}


def test_rows_of_the_plan_name_a_kind_where_the_model_declares_kinds() -> None:
    assert [name for name, _, _ in expert_rows(*planned())] == [
        "experts of kind routed",
        "exchanged tokens of kind routed",
    ]
    config = resolve_config(small(model={"experts": KINDS["experts"]}, parallel={"expert": 4, "tensor": 2}), 8)
    rows = expert_rows(config, make_plan(config, jax.devices()[0], 8))
    assert [name for name, _, _ in rows] == ["experts", "exchanged tokens"]


@pytest.mark.parametrize("exchange", ["all_to_all", "all_gather"])
def test_the_layers_run_what_the_plan_has(exchange: Any) -> None:
    config, plan = planned()
    layout = StepLayout(config, replace(plan, experts={"routed": ExpertLayout(Choice(exchange), 3.0)}))
    layer = stages_of(layout, train=False).prototype("routed")
    assert layer.mlp.layout == ExpertLayout(Choice(exchange), 3.0)


@pytest.mark.parametrize(
    ("experts", "parts"),
    [
        ({}, ("plan.experts", "none", "routed")),
        ({"dense": {}}, ("plan.experts", "dense", "routed")),
        ({"routed": {"exchange": Choice("all")}}, ("plan.experts", "exchange", "all_to_all", "'all'")),
        ({"routed": {"products": Choice("mosiac", "")}}, ("products", "'mosiac'", "did you mean mosaic")),
        ({"routed": {"products": Choice("mosaic", "")}}, ("products", "'mosaic'", "kind routed", "platform is cpu")),
        ({"routed": {"sent_dtype": "float8_e4m3fn"}}, ("sent_dtype", "float8_e4m3fn", "quantized.tokens", "null")),
        ({"routed": {"capacity": 2.5}}, ("plan.experts", "2.5", "parallel.experts.capacity", "1.5")),
        ({"routed": {"slices": Choice(2), "own_first": Choice(True)}}, ("own_first", "false", "tensor 2", "true")),
    ],
)
def test_a_plan_of_other_experts_is_refused(experts: dict[str, dict[str, Any]], parts: tuple[str, ...]) -> None:
    config, plan = planned()
    changed = {kind: ExpertLayout(**{"capacity": 1.5} | own) for kind, own in experts.items()}
    with refused(*parts):
        check_plan(replace(plan, experts=changed), config, jax.devices()[0], 8)


def test_an_exchange_that_is_asked_for_is_that_of_the_plan() -> None:
    config, plan = planned("all_to_all")
    with refused("plan.experts", "expected all_to_all", "'all_gather'"):
        changed = {"routed": replace(plan.experts["routed"], exchange=Choice("all_gather"))}
        check_plan(replace(plan, experts=changed), config, jax.devices()[0], 8)


def test_no_room_for_an_even_share_is_refused() -> None:
    with refused("plan.experts", "capacity", "0.5"):
        ExpertLayout(capacity=0.5)


def test_own_rows_go_first_where_they_may_and_are_asked_for() -> None:
    sliced = {"expert": 4, "experts": {"slices": 2, "exchange": "all_to_all"}}

    def found(own_rows: str = "auto", **parallel: Any) -> ExpertLayout:
        parallel = with_experts(sliced, **parallel.pop("experts", {}), own_rows=own_rows) | parallel
        config = resolve_config(small(model=KINDS, parallel=parallel), 4 * parallel.get("tensor", 1))
        return make_plan(config, jax.devices()[0], 8).experts["routed"]

    assert [found(one).own_first.name for one in ("first", "exchanged")] == [True, False]
    assert not found().own_first.name and "CPU" in found().own_first.reason
    for parallel, parts in (
        ({"experts": {"slices": 1}}, ("one piece",)),
        ({"tensor": 2}, ("parallel.tensor 2",)),
        ({"experts": {"exchange": "all_gather"}}, ("all_gather",)),
    ):
        with refused("parallel.experts.own_rows", "first", *parts, "auto"):
            found("first", **parallel)
