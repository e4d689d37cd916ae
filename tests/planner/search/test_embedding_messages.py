"""What the planner takes a layout to send of the embedding is what the trainer's plan of that layout sends."""

from typing import Any

import pytest

from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.space import Choice, Group
from jaxpar.planner.settings import config_of, plan_on
from tests.planner.spaces import model_of, search_of

MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "as it is": {},
    "learned positions": {"model": {"position": "learned", "max_positions": 16384}},
    "tied": {"model": {"tied": True}},
    "16-bit gradients": {"precision": {"gradient": "bfloat16"}},
    "frozen": {"lora": {"rank": 8}, "run": {"init_from": "base"}},
    "codes": {"parallel": {"quantized": {"gradients": "int8"}}},
    "the table is named": {"parallel": {"overlap": {"embedding_messages": "table"}}},
    "rows are named": {"parallel": {"overlap": {"embedding_messages": "rows"}}},
}
BATCH, RANKS = 512, 16
ROWS = {"zero 3": (3, (2, 4, 16)), "zero 2": (2, (4, 8, 16))}
"""Stage of ZeRO, and sequences of a microbatch: by the first some models send rows, and by the last none do."""


@pytest.mark.parametrize("stage", ROWS)
def test_the_planner_and_the_trainer_choose_alike(stage: str):
    zero, sizes = ROWS[stage]
    choice = Choice(zero, "allgather")
    found: dict[str, list[str]] = {}
    for name, sections in MODELS.items():
        model = {"vocab": 32768} | sections.get("model", {})
        config = planned_config(model_of(**sections | {"model": model, "data": {"batch_size": BATCH}}))
        search = search_of(config, "h100:2x8")
        found[name] = []
        for rows in sizes:
            group = Group(1, 1, RANKS, 1, 1, rows)
            layout = search.activations(group, choice).layout("full")
            _, plan = plan_on(config_of(config, layout), search.cluster, usable=2**40)
            assert layout.embedding_messages == plan.embedding_messages.name, f"{name}, {rows} sequences"
            found[name].append(plan.embedding_messages.name)
    assert {"table", "rows"} <= set(found["as it is"]), "the grid has both"
