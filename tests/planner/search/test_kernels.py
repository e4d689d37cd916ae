"""The attention that a run would take is the one that is timed."""

from functools import partial
from typing import Any

import pytest

from jaxpar.cost.hardware_model import hardware_of
from jaxpar.cost.operations import device_of
from jaxpar.hardware.catalogue import gpu_named
from jaxpar.planner.planning import planned_config
from jaxpar.planner.search.candidate import Planned
from jaxpar.planner.search.space import Choice, Group
from jaxpar.planner.settings import config_of, plan_on
from pallas_kernels.attention.registry import REGISTRY
from tests.planner.spaces import model_of, search_of

ONE_ROW = {"sequence_length": 8192, "batch_size": 4}
HELD = {"tensor": 1, "pipe": 1, "microbatch": 1, "remat": "none", "zero": 3}


def best(
    cluster: str = "h100:1x4", packed: bool = False, backend: str = "auto", model: dict[str, Any] | None = None,
    **fixed: Any,
) -> Planned:  # fmt: skip
    config = model_of(data=ONE_ROW | {"packed": packed}, attention={"backend": backend}, model=model or {})
    return search_of(config, cluster, **(HELD | {"context": 1} | fixed)).best(1)[0]


def attention(planned: Planned) -> float:
    return planned.candidate.time.breakdown["attention"]


@pytest.mark.parametrize(
    ("cluster", "asked"),
    [
        ("h100:1x4", {}),
        ("h100:1x4", {"packed": True}),
        ("a100-80:1x4", {}),
        ("a100-80:1x4", {"packed": True}),
        ("h100:1x4", {"backend": "xla"}),
        ("h100:1x4", {"context": 2, "context_strategy": "allgather"}),
        ("h100:1x4", {"context": 2, "context_strategy": "ulysses"}),
    ],
)
def test_the_kernels_that_are_timed_are_those_of_the_plan(cluster: str, asked: dict[str, Any]):
    one = best(cluster, **asked)
    assert one.candidate.layout.attention == (("all", one.plan.attention["all"].name),)


def test_context_ranks_attend_over_whole_rows_where_only_then_a_kernel_runs():
    parts, rows = (best(context=2, context_strategy=name) for name in ("allgather", "ulysses"))
    assert (parts.plan.attention["all"].name, rows.plan.attention["all"].name) == ("xla", "cudnn")
    assert attention(parts) > 5 * attention(rows)
    assert best(context=2).candidate.layout.context_strategy == "ulysses"


def test_a_backend_that_some_layouts_cannot_run_leaves_the_others():
    assert best(backend="cudnn", context=2).candidate.layout.context_strategy == "ulysses"


@pytest.mark.parametrize("kernels", [one.name for one in REGISTRY.entries])
def test_time_rises_with_queries_keys_and_width(kernels: str):
    gpu = gpu_named("h100")
    device = device_of(gpu, hardware_of(gpu))
    asked = 1, 8, 4096, 2048, 128
    timed = device.blocks if kernels == "xla" else partial(device.flash, kernels=kernels)
    for place in range(len(asked)):
        larger: list[Any] = [2 * number if place == i else number for i, number in enumerate(asked)]
        assert all(b > a for a, b in zip(timed(*asked), timed(*larger), strict=True))


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
