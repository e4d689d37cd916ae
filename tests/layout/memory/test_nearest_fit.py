"""Which changes of settings are tried where a step does not fit."""

from typing import Any

from jaxpar.layout.memory.nearest_fit import changes
from tests.small_run import small


def tried(**memory: Any) -> list[str]:
    return list(changes(small(memory=memory)))


def test_weights_of_layers_follow_a_state_that_is_on_the_host_already():
    assert "memory.weights_offload=host" in tried(optimizer_offload="host")
    assert "memory.weights_offload=host" not in tried(optimizer_offload="none")


def test_after_the_host_come_files():
    tiers = lambda found: [setting for setting in found if "optimizer_offload" in setting]
    assert tiers(tried()) == ["memory.optimizer_offload=host", "memory.optimizer_offload=file"]
    assert tiers(tried(optimizer_offload="host")) == ["memory.optimizer_offload=file"]
    assert tiers(tried(optimizer_offload="file")) == []


def test_devices_in_the_hosts_memory_gain_nothing_by_moving_what_they_hold_there():
    settings = list(changes(small(), host=False))
    assert not any("host" in setting or "offload_fraction" in setting or "{" in setting for setting in settings)
    assert "memory.optimizer_offload=file" in settings
    assert "memory.weights_offload=host" not in changes(small(memory={"optimizer_offload": "host"}), host=False)
