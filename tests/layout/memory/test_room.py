"""The memory that is left for activations, by units in flight."""

from pathlib import Path

from jaxpar.compiler.compile import plan_for
from jaxpar.config import load_config
from jaxpar.hardware.cluster import parse_cluster
from jaxpar.layout.memory.room import memory_room

LLAMA = Path(__file__).parents[3] / "configs" / "llama3_8b.yaml"


def test_a_pipeline_keeps_as_many_units_as_its_stash_has_slots():
    on = parse_cluster("h100:1x8")
    overrides = ["parallel.pipe=4", "parallel.fsdp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"]
    config, plan = plan_for(load_config(LLAMA, overrides), on)
    room = memory_room(config, plan, on.device_bytes)
    assert room.units >= 11  # of the published schedule on the first rank; ticks of all ranks take more
    assert room.unit_bytes == (on.device_bytes - room.used_bytes) // room.units
