"""Experts that do not fit: one sentence each, with the key, the value and what was expected."""

from typing import Any

import pytest

from jaxpar.config import load_config
from jaxpar.config.mappings.overlap import OFF
from jaxpar.config.schema.layout import expert_options
from jaxpar.layers.counting import matmul_parameters, parameter_count
from jaxpar.layers.experts.routers import ROUTERS
from jaxpar.layout.checks.validate import validate
from jaxpar.planner.planning import planned_config
from tests.sentences import refusals, refused

GOOD = "model.experts={count: 8, per_token: 2}"


@refusals(
    """
    model.experts={per_token: 2} => model.experts | count
    model.experts={count: 8, pertoken: 2} => model.experts | 'pertoken' | per_token?
    model.experts={count: 8, router: sigmod} => model.experts.router | 'sigmod' | sigmoid?
    model.experts={count: 2, per_token: 3} => model.experts.per_token | at most 2 | 3
    model.experts={count: 2, per_token: 2, router: noisy_top_k} => model.experts.per_token | at most 1 | 2
    model.experts={count: 8, per_token: 2, router: switch} => model.experts.per_token | switch | 1
    model.experts={count: 8, per_token: 1, router: gshard} => model.experts.per_token | gshard | 2
    model.experts={count: 8, per_token: 3, router: k_top_1} => model.experts.count | 8 | per_token (3) | 9
    model.experts={count: 8, router_options: {groups: 3, groups_per_token: 1}} => model.experts.count | groups (3)
    model.experts={count: 8, router_options: {groups: 4}} => model.experts.router_options.groups_per_token | null | both
    model.experts={count: 8, per_token: 3, router_options: {groups: 4, groups_per_token: 1}} =>
        model.experts.per_token | at most 2
    model.experts={count: 8, router: hash, router_options: {groups: 4}} => model.experts.router_options | 'groups'
    model.experts={count: 8, router: expert_choice} => model.experts.router | expert_choice | force: true
    model.experts={count: 8, router_options: {force: true}} => router_options | 'force'
    model.experts={count: 8, router_options: null} => model.experts.router_options | null | {}
    model.experts={count: 8, per_token: 2, router: base} => model.experts.per_token | base | 1
    model.experts={count: 8, router: sam} => router_options | groups | missing
    model.experts={count: 8, router: sam, router_options: {groups: 4, groups_per_token: 2}} =>
        model.experts.router_options | 'groups_per_token'
    model.experts={count: 8, router: dense_to_sparse, router_options: {anneal_step: 5}} =>
        model.experts.router_options | 'anneal_step' | anneal_steps?
    model.experts={count: 8, router: hash, sequence_loss: 0.1} => model.experts.sequence_loss | 0.1 | hash
    model.experts={count: 8, capacity_factor: 0.0} => model.experts.capacity_factor | at least | 0
    model.experts={count: 8, norms: true} => model.experts.norms | true | model.experts.shared is 0
    model.experts={count: 8, shared: 1, norms: true} | model.norm=layernorm => model.experts.norms | true |
        model.norm: layernorm | rmsnorm
    data.routing=a => data.routing | a | model.experts | null
    model.experts={count: 8, router: gshard, router_options: {scale: 2.0}} => router_options | 'scale'
    model.experts={count: 8, clusters: {share: 1.5}} => model.experts.clusters.share | 1.5 | at most 1
    model.experts={count: 8, clusters: {hashes: 3}} => clusters | share | missing
    model.experts={count: 8, clusters: {share: 0.5, hash: 3}} => model.experts.clusters | 'hash' | hashes?
    model.experts={count: 8, groups: 4} => 'groups' | router_options
    model.experts={count: 8, compression: 0.5} => 'compression' | clusters
    model.experts={count: 8, router: dense_to_sparse, clusters: {share: 0.5}} => model.experts.clusters | 0.5 |
        dense_to_sparse | {}
    model.experts={count: 8, balance_loss: -1.0} => model.experts.balance_loss | 0 | -1.0
    GOOD | parallel.expert=3 | data.batch_size=24 => model.experts.count | 8 | parallel.expert (3)
    model.experts={count: 8, width: 6} | parallel.tensor=4 => model.experts.width | 6 | parallel.tensor (4)
    GOOD | model.low_rank={query: 8} => model.low_rank | query | {}
    GOOD | memory.mlp_tiles=2 => memory.mlp_tiles | 2 | every layer | 1 or null
    parallel.experts.exchange=all_gather => parallel.experts.exchange | all_gather | model.experts
    parallel.experts.imbalance=1.5 => parallel.experts.imbalance | 1.5 | 1.0
    GOOD | parallel.experts.imbalance=0.9 => experts.imbalance | at least 1 | 0.9
    parallel.experts.backend=mosaic => parallel.experts.backend | mosaic | model.experts
    GOOD | parallel.experts.backend=mosiac => parallel.experts.backend | mosiac | mosaic
    parallel.experts.own_rows=first => parallel.experts.own_rows | first | model.experts
    GOOD | parallel.experts.own_rows=frist => parallel.experts.own_rows | frist | first
    parallel.experts.slices=2 => parallel.experts.slices | 2 | model.experts
    parallel.quantized.tokens=float8_e4m3fn => parallel.quantized.tokens | float8_e4m3fn | model.experts | null
    GOOD | parallel.quantized.tokens=float8_e5m2 => parallel.quantized.tokens | float8_e5m2 | float8_e4m3fn
    GOOD | parallel.experts.slices=0 => parallel.experts.slices | at least 1 | 0
    GOOD | parallel.experts.slices=aut => parallel.experts.slices | auto | 'aut'
    GOOD | parallel.experts.exchange=ragged => parallel.experts.exchange | ragged | all_to_all
    GOOD | parallel.experts.capacity=0.5 => parallel.experts.capacity | at least 1 | 0.5
    GOOD | model.kinds={a: {experts: 4}} | model.pattern={unit: [a]} => model.kinds.a.experts | mapping | 4
""",
    GOOD=GOOD,
)
def test_what_does_not_fit_is_one_sentence(overrides: list[str], parts: tuple[str, ...]):
    with refused(*parts):
        validate(load_config(None, overrides))


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
