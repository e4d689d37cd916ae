"""The plan in a few lines, and as a table."""

from typing import Any

import pytest

from jaxpar.config.mappings.experts import ExpertsConfig
from jaxpar.config.schema.model import Pattern
from jaxpar.training.run.plan_brief import _unusual, plan_brief
from jaxpar.training.run.plan_table import plan_rows
from tests.small_run import SmallRun, small

USUAL = ["model", "mesh", "memory", "batch", "precision", "optimizer", "data"]


def brief(**sections: Any) -> dict[str, str]:
    step = SmallRun(small(**sections)).step
    return dict(plan_brief(step.layout, step.mesh, "the data"))


def test_a_usual_run_is_a_few_lines():
    found = brief(parallel={"fsdp": 2, "tensor": 2})
    assert list(found) == USUAL
    assert "fsdp 2, tensor 2" in found["mesh"] and "the data" in found["data"]


def test_what_is_unusual_has_a_line_of_its_own():
    found = brief(parallel={"pipe": 2, "microbatches": 4}, memory={"optimizer_offload": "host"})
    assert {"pipeline", "bubble", "optimizer offload"} == {*found} - {*USUAL}
    slow = [("attention", "xla", "no kernel supports this"), ("context", "xla", "")]
    assert _unusual(slow, on_gpu=True) == [("attention", "xla: no kernel supports this")]
    assert _unusual(slow, on_gpu=False) == []


@pytest.mark.parametrize("sections", [{}, {"model": {"qk_norm": True}}, {"precision": {"matmul": "fp8_current"}}])
def test_on_a_cpu_no_line_is_about_gpus(sections: dict[str, Any]):
    step = SmallRun(small(**sections)).step
    words = [" ".join(row) for row in plan_rows(step.layout, step.mesh, "")]
    words += [" ".join(line) for line in plan_brief(step.layout, step.mesh, "")]
    assert [line for line in words if "GPU" in line or "kernel" in line] == []


RING = {"context": 8, "context_strategy": "ring", "microbatches": 2}
SHARED = {"shard_state_over_replicas": True}
EXPERTS = {"experts": ExpertsConfig(count=8, per_token=2)}
KINDS = {"kinds": {"dense": {"experts": None}, "routed": {}}, "pattern": Pattern(prefix=("dense",), unit=("routed",))}


@pytest.mark.parametrize(
    ("parallel", "model", "rows"),
    [
        # Keys and values of 4 rows of 4 tokens have 4 KiB; 7 hops forward, twice that back. Of 8 ranks with 4 tokens
        # of a row each the last sees 122 pairs, and the mean is 66.
        (RING | {"context_order": "zigzag"}, {},
         {"context strategy": "ring", "context order": "sends 28.0 KiB forward and 56.0 KiB backward",
          "context ranks": "has 0% more work"}),
        (RING | {"context_order": "contiguous"}, {}, {"context order": "contiguous", "context ranks": "has 85% more"}),
        ({"replica": 2, "fsdp": 2, "overlap": SHARED | {"collectives_at_once": 2}}, {},
         {"ZeRO": "optimizer state over 2 replicas too", "shard state over replicas": "true named by",
          "attention": "xla", "collectives at once": "2 parallel.overlap.collectives_at_once asks"}),
        ({"replica": 4, "fsdp": 2, "overlap": SHARED}, {"embed": 28, "head_dim": 8, "layers": 1},
         {"ZeRO": "the same in all replicas for want of a dim that divides: embedding/tokens"}),
        ({"fsdp": 4, "expert": 2, "hpz": 4}, EXPERTS,
         {"messages": "exact hpZ over 4 ranks, 2 ranks for experts' weights", "experts exchange": "all_"}),
        ({"fsdp": 2, "expert": 4, "hpz": 4}, EXPERTS | KINDS,
         {"messages": "4 ranks, none of experts' weights", "attention dense": "xla",
          "experts routed exchange": "all_"}),
    ],
    ids=["zigzag", "contiguous", "replicas", "undivided", "experts", "kinds"],
)  # fmt: skip
def test_the_table_has_what_a_plan_decides(parallel: dict[str, Any], model: dict[str, Any], rows: dict[str, str]):
    step = SmallRun(small(parallel=parallel, model=model)).step
    found = {name: f"{value} {why}" for name, value, why in plan_rows(step.layout, step.mesh, "")}
    assert {name: part for name, part in rows.items() if part not in found.get(name, "")} == {}
