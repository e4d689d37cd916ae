"""Experts: what is counted, what goes together, and what a plan keeps of what was asked."""

from typing import Any

import pytest

from jaxpar.config import load_config
from jaxpar.config.mappings.overlap import OFF
from jaxpar.config.schema.layout import expert_options
from jaxpar.layers.counting import matmul_parameters, parameter_count
from jaxpar.layers.experts.routers import ROUTERS
from jaxpar.layout.checks.validate import validate
from jaxpar.planner.planning import planned_config
from tests.sentences import refused

GOOD = "model.experts={count: 8, per_token: 2}"


@pytest.mark.parametrize("value", ["0", "0.01"])
def test_no_balance_loss_and_the_default_are_allowed_with_any_router(value: str):
    for router, own in ROUTERS.items():
        options = {"expert_choice": "{force: true}", "sam": "{groups: 4}"}.get(router, "{}")
        per_token = own.per_token or 2
        experts = f"{{count: 8, per_token: {per_token}, router: {router}, router_options: {options}"
        validate(load_config(None, [f"model.experts={experts}, balance_loss: {value}}}", "model.vocab=256"]))
        other = [f"model.experts={experts}, balance_loss: 0.1}}", "model.vocab=256"]
        if own.loss is not None:
            validate(load_config(None, other))
        else:
            with refused("model.experts.balance_loss", router):
                validate(load_config(None, other))


def test_a_plan_keeps_what_is_asked_of_the_exchange():
    asked = ["parallel.experts.exchange=all_gather", "parallel.experts.capacity=1.5", "parallel.experts.imbalance=1.2"]
    found = planned_config(load_config(None, [GOOD, "model.vocab=256", *asked, "parallel.auto=true"])).parallel
    assert (found.experts.exchange, found.experts.capacity, found.experts.imbalance) == ("all_gather", 1.5, 1.2)
    assert not found.auto and found.expert == 1


def test_a_plan_keeps_what_is_asked_of_messages_where_every_layout_can_have_it():
    asked = ["model.vocab=256", "parallel.overlap=off", "parallel.auto=true"]
    validate(load_config(None, asked))
    assert planned_config(load_config(None, asked)).parallel.overlap == OFF
    asked = ["model.vocab=256", "parallel.overlap.collectives_at_once=2", "parallel.auto=true"]
    found = planned_config(load_config(None, [*asked, "parallel.overlap.layer_unroll=1"])).parallel
    assert (found.overlap.collectives_at_once, found.overlap.layer_unroll) == (2, 1)
    with refused("parallel.overlap.layer_unroll: 2", "would not be used", "parallel: auto"):
        validate(load_config(None, [*asked, "parallel.overlap.layer_unroll=2"]))


def test_overlap_that_is_off_leaves_experts_in_one_slice_whatever_else_is_turned_on():
    slices = lambda *asked: expert_options(load_config(None, ["parallel.overlap=off", *asked]).parallel).slices
    assert slices() == slices("parallel.overlap.tensor=ring") == 1
    assert slices("parallel.experts.slices=4") == 4
    assert slices("parallel.overlap.experts=auto") == slices("parallel.overlap=auto") == "auto"


@pytest.mark.parametrize(
    "experts",
    [
        {"count": 8, "per_token": 2, "shared": 1, "width": 64},
        {"count": 8, "per_token": 8, "router": "sigmoid", "router_options": {"groups": 4, "groups_per_token": 4}},
    ],
)
def test_weights_are_counted_and_those_that_a_token_uses(experts: dict[str, Any]):
    dense = load_config(None, ["model.vocab=256"]).model
    model = load_config(None, ["model.vocab=256", f"model.experts={experts}".replace("'", "")]).model
    width, count = experts.get("width", dense.mlp), experts["count"]
    mlp, one = 3 * dense.embed * dense.mlp, 3 * dense.embed * width
    router = dense.embed * count + (count if experts.get("router") == "sigmoid" else 0)
    more = (count + experts.get("shared", 0)) * one + router - mlp
    assert parameter_count(model, padded=False) - parameter_count(dense, padded=False) == dense.layers * more
    active = (experts["per_token"] + experts.get("shared", 0)) * one + dense.embed * count - mlp
    assert matmul_parameters(model, 256) - matmul_parameters(dense, 256) == dense.layers * active


def test_some_layers_are_dense():
    kinds = "model.kinds={dense: {experts: null}, routed: {}}"
    config = load_config(None, [GOOD, kinds, "model.pattern={prefix: [dense], unit: [routed]}", "model.vocab=256"])
    validate(config)
    all_routed = load_config(None, [GOOD, "model.vocab=256"]).model
    fewer = parameter_count(all_routed, padded=False) - parameter_count(config.model, padded=False)
    assert fewer == 7 * 3 * config.model.embed * config.model.mlp + 8 * config.model.embed
