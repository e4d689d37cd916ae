"""State on the host: a step takes as long as the host's link needs for the bytes that the executor moves."""

from __future__ import annotations

from typing import Any

import pytest

from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.layout.memory.state_storage import streamed_bytes
from jaxpar.layout.step_layout import StepLayout
from jaxpar.planner.search.candidate import Planned
from tests.planner.spaces import model_of, search_of


def planned(moments: str, optimizer: str = "adamw", matmul: str | None = None, **rule: Any) -> Planned:
    precision = {"moments": moments, "matmul": matmul}
    if matmul is not None:
        precision["matmul_options"] = MatmulOptions(first_layers=0, last_layers=0)
    config = model_of(model={"activation": "gelu"}, precision=precision, optimizer={"name": optimizer, **rule})
    fixed = {"offload": "optimizer", "fsdp": 4, "remat": "none", "zero": 3}
    return search_of(config, "h100:1x4", **fixed).best(1)[0]


@pytest.mark.parametrize(
    ("moments", "optimizer", "rule"),
    [("float32", "adamw", {}), ("bfloat16", "adamw", {}), ("int8", "adamw", {}), ("float32", "lion", {"ema": 0.99})],
)
def test_the_link_moves_what_the_executor_moves(moments: str, optimizer: str, rule: dict[str, Any]):
    one = planned(moments, optimizer, **rule)
    there, back = streamed_bytes(StepLayout(one.config, one.plan))
    assert there > back > 0
    wanted = there / one.cluster.host_bandwidth
    assert one.candidate.time.breakdown["optimizer"] == pytest.approx(wanted, rel=0.02)


def test_masters_of_codes_pass_over_the_link_once_more():
    """For the largest magnitude of each matrix; 20 bytes a parameter for 16 with AdamW."""
    one, plain = planned("float32", matmul="fp8_delayed"), planned("float32")
    there, without = (streamed_bytes(StepLayout(each.config, each.plan))[0] for each in (one, plain))
    assert 1.1 * without < there < 1.25 * without
    wanted = there / one.cluster.host_bandwidth
    assert one.candidate.time.breakdown["optimizer"] == pytest.approx(wanted, rel=0.02)
