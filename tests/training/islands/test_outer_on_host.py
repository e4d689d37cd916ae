"""The state that islands share in host memory: the bits of a run with it on the devices."""

from typing import Any

import jax
import pytest

from jaxpar.layout.islands import ISLAND_WEIGHTS, OUTER_MOMENTUM
from jaxpar.layout.memory.estimate import estimate_memory
from jaxpar.layout.memory.state_bytes import offloaded_state_bytes
from jaxpar.layout.memory.state_storage import check_offloaded_state, offload_rows
from jaxpar.memory import streaming
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.training.islands.test_steps import OUTER, made, trained

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "at once": ({"every": 2}, {}),
    "fragments, fsdp": ({"every": 4, "fragments": 2, "delay": 2, "mix": 0.25}, {"fsdp": 2}),
    "eager fragments, pipe": (
        {"every": 2, "fragments": 2, "eager": True, "wire": "int8"}, {"pipe": 2, "microbatches": 2},
    ),
    "eager, tensor": ({"every": 2, "eager": True}, {"tensor": 2}),
}  # fmt: skip


def memories(state: Any) -> tuple[set[str], set[str]]:
    """Where the state that islands share is, and where that of each of them is."""
    of = lambda *trees: {leaf.sharding.memory_kind for leaf in jax.tree.leaves(trees)}
    return of(state.master, state.optimizer[OUTER_MOMENTUM]), of(state.optimizer[ISLAND_WEIGHTS])


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_run_has_the_same_bits_with_the_outer_state_on_the_host(case, monkeypatch):
    """In pieces of a few rows; and so has the loss of the global weights."""
    monkeypatch.setattr(streaming, "PIECE_BYTES", 3000)
    islands, parallel = CASES[case]
    islands = islands | {"outer": OUTER}
    device, host = (made(islands | {"offload": where}, parallel=parallel) for where in ("none", "host"))
    (wanted, of_device), (found, of_host) = (trained(run, 5) for run in (device, host))
    assert of_host == of_device
    assert_same_bits(found[-1], wanted[-1])
    state = host.step.residency.initial_state()
    assert memories(state) == ({"pinned_host"}, {"device"})
    state, _ = host.step.residency.advance(host.step.train, state, host.batch(0), host.step.arguments)
    assert memories(state) == ({"pinned_host"}, {"device"})
    start = device.step.residency.initial_state()
    assert_same_bits(
        *(jax.device_get(run.step.evaluate(own.master, run.batch(1))) for run, own in ((host, state), (device, start)))
    )


def test_the_estimate_and_the_plan_have_the_outer_state_in_host_memory():
    none, host = (made({"every": 2, "offload": where}, parallel={"fsdp": 2}) for where in ("none", "host"))
    there, here = (estimate_memory(run.config, run.step.layout.plan) for run in (host, none))
    outer = offloaded_state_bytes(host.step.layout)
    assert (there.host - here.host, here.device - there.device) == (outer, outer)
    ((name, *_),) = offload_rows(host.step.layout, "cpu")
    assert name == "outer state offload"
    with refused("islands.offload: host", "host memory", "expected islands.offload: none"):
        check_offloaded_state(host.step.layout, host.step.mesh, limit=1)
