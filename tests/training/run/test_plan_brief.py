"""The plan in a few lines, and as a table."""

from typing import Any

import pytest

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
