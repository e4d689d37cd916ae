"""Where the planner takes replicas to share the optimizer's state, the trainer's plan of that layout has it so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jaxpar.config import Config
from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.space import Choice, Group
from jaxpar.planner.settings import ONE_STAGE, config_of, plan_on
from tests.planner.spaces import model_of, search_of

MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "as it is": {},
    "sums are after the backward": {"parallel": {"replica_sums": "after"}},
    "codes": {"precision": {"matmul": "fp8_current"}},
    "frozen": {"lora": {"rank": 8}, "run": {"init_from": "base"}},
    "true is named": {"parallel": {"shard_state_over_replicas": True}},
    "false is named": {"parallel": {"shard_state_over_replicas": False}},
}
BATCH = 64
GROUPS = {
    "replicas": Group(1, 2, 8, 1, 1, 2),
    "replicas and tensor ranks": Group(1, 2, 4, 1, 2, 2),
    "replicas alone": Group(1, 16, 1, 1, 1, 2),
    "one replica": Group(1, 1, 16, 1, 1, 2),
    "a pipeline": Group(2, 2, 4, 1, 1, 2),
}
"""Ranks of pipe, replica, fsdp, context and tensor, and sequences of a microbatch."""
STATE = {"zero 3": (3, False), "zero 3, state on the host": (3, True), "zero 1": (1, False)}
SHARED = {
    "as it is": {"replicas", "replicas and tensor ranks"},
    "frozen": {"replicas", "replicas and tensor ranks"},
    "true is named": {*GROUPS} - {"one replica"},
}
"""Models, and the groups whose replicas share state under `zero 3`; of no other model they do."""


def chosen(config: Config, group: Group, zero: int, offload: bool) -> tuple[bool, bool]:
    """What the planner takes, and what the trainer's plan of that layout has where it is asked as in `config`."""
    search = search_of(config, "h100:2x8")
    schedule = "1f1b" if group.pipe > 1 else ONE_STAGE
    planner = search.activations(group, Choice(schedule, 1, zero, "allgather", optimizer_offload=offload))
    layout = planner.layout("full")
    assert planner.case.state_replicas == (group.replica if layout.shard_state else 1), (
        "time and memory are of one layout"
    )
    own = config_of(config, layout)
    assert own.parallel.shard_state_over_replicas == layout.shard_state, "the configuration says which it is"
    if group.replica > 1:
        asked = config.parallel.shard_state_over_replicas
        own = replace(own, parallel=replace(own.parallel, shard_state_over_replicas=asked))
    _, plan = plan_on(own, search.cluster, usable=2**40)
    return layout.shard_state, plan.shard_state_over_replicas


@pytest.mark.parametrize("model", MODELS)
def test_the_planner_and_the_trainer_choose_alike(model: str):
    config = planned_config(model_of(**MODELS[model] | {"data": {"batch_size": BATCH}}))
    found = {name: chosen(config, group, 3, False) for name, group in GROUPS.items()}
    assert [name for name, (planner, trainer) in found.items() if planner != trainer] == []
    assert {name for name, (planner, _) in found.items() if planner} == SHARED.get(model, set())


@pytest.mark.parametrize("state", STATE)
def test_state_on_the_host_and_weights_that_ranks_have_whole_stay_in_each_replica(state: str):
    config = planned_config(model_of(data={"batch_size": BATCH}))
    shared = state == "zero 3"
    assert chosen(config, GROUPS["replicas"], *STATE[state]) == (shared, shared)


def test_the_best_plan_names_what_it_takes():
    """So that a run of its configuration is the program that was timed."""
    best = search_of(planned_config(model_of(data={"batch_size": BATCH})), "h100:2x8", replica=2, zero=3).best(1)[0]
    assert best.config.parallel.shard_state_over_replicas is True and best.plan.shard_state_over_replicas
