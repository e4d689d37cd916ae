"""State on the host: a step takes as long as the host's link needs for the bytes that the executor moves."""

from typing import Any

import pytest

from jaxpar.config.mappings.matmul import MatmulOptions
from jaxpar.layout.memory.state_storage import streamed_bytes
from jaxpar.layout.resident_state import resident_share
from jaxpar.layout.step_layout import StepLayout
from jaxpar.planner.search.candidate import Planned
from tests.planner.spaces import model_of, search_of

MODEL = {"activation": "gelu", "embed": 2048, "mlp": 8192, "vocab": 32768}
NO_ROOM = int(3.02 * 2**30)
"""Bytes of a device that hold a step with its pieces of state, and next to none of the state besides."""


def planned(
    moments: str, optimizer: str = "adamw", matmul: str | None = None, limit: int | None = NO_ROOM, **rule: Any
) -> Planned:
    precision = {"moments": moments, "matmul": matmul}
    if matmul is not None:
        precision["matmul_options"] = MatmulOptions(first_layers=0, last_layers=0)
    config = model_of(model=MODEL, precision=precision, optimizer={"name": optimizer, **rule})
    fixed = {"offload": "optimizer", "fsdp": 4, "remat": "none", "zero": 3, "microbatch": 1}
    return search_of(config, "h100:1x4", limit, **fixed).best(1)[0]


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


def test_state_that_stays_on_the_device_takes_none_of_the_link():
    """The plan that a run makes of the planner's layout leaves the same state on the device."""
    found = [planned("float32", limit=limit) for limit in (NO_ROOM, int(3.75 * 2**30), int(3.95 * 2**30))]
    for one in found:
        there, _ = streamed_bytes(StepLayout(one.config, one.plan))
        wanted = there / one.cluster.host_bandwidth
        assert one.candidate.time.breakdown["optimizer"] == pytest.approx(wanted, rel=0.005)
        assert one.candidate.layout.resident_state == pytest.approx(resident_share(one.config, one.plan))
    shares = [one.candidate.layout.resident_state for one in found]
    assert shares[0] < 0.01 < 0.1 < shares[1] < shares[2] < 0.5
    everything = planned("float32", limit=None)
    assert everything.candidate.layout.resident_state == 1 and everything.candidate.memory.host == 0
    assert everything.candidate.time.breakdown["optimizer"] < 0.1 * found[0].candidate.time.breakdown["optimizer"]


def test_masters_of_codes_pass_over_the_link_once_more():
    """For the largest magnitude of each matrix; 20 bytes a parameter for 16 with AdamW."""
    one, plain = planned("float32", matmul="fp8_delayed"), planned("float32")
    there, without = (streamed_bytes(StepLayout(each.config, each.plan))[0] for each in (one, plain))
    assert 1.1 * without < there < 1.25 * without
    wanted = there / one.cluster.host_bandwidth
    assert one.candidate.time.breakdown["optimizer"] == pytest.approx(wanted, rel=0.02)
