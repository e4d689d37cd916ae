"""What is left for activations, against compiled programs."""

from pathlib import Path

import pytest

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.memory.room import memory_room
from jaxpar.memory.closed_forms import CLOSED_FORMS
from tests.memory.shapes import layer_shape

GIB = 2**30
CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize(
    ("file", "cluster", "remat", "peak"),
    [
        ("llama3_8b", "h100:1x8", "gemm_last", 47.7),
        ("llama3_8b", "h100:1x8", "full", 26.0),
        ("llama3_70b", "h100:32x8", "full", 28.0),
    ],
)
def test_the_estimate_is_near_the_peak_of_the_compiled_step(file: str, cluster: str, remat: str, peak: float):
    """Peaks in GiB as `python -m jaxpar.inspect` read them from XLA's program."""
    on = parse_cluster(cluster)
    config, plan = plan_for(load_config(CONFIGS / f"{file}.yaml", [f"memory.remat={remat}"]), on)
    room = memory_room(config, plan, on.device_bytes)
    kept = CLOSED_FORMS[remat](layer_shape(config, plan.axes, plan.microbatch_rows)) * config.model.layers
    assert (room.used_bytes + kept) / GIB == pytest.approx(peak, rel=0.1)
    assert room.units == 1
    assert room.unit_bytes == on.device_bytes - room.used_bytes


def test_a_pipeline_keeps_as_many_units_as_its_stash_has_slots():
    on = parse_cluster("h100:1x8")
    overrides = ["parallel.pipe=4", "parallel.fsdp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"]
    config, plan = plan_for(load_config(CONFIGS / "llama3_8b.yaml", overrides), on)
    room = memory_room(config, plan, on.device_bytes)
    assert room.units >= 11  # of the published schedule on the first rank; ticks of all ranks take more
    assert room.unit_bytes == (on.device_bytes - room.used_bytes) // room.units
