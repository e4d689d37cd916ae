"""Activations that wait in host memory for their backward: the same bits, counted, refused where there is no room."""

from typing import Any

import jax
import pytest

from jaxpar.layout.memory.estimate import offloaded_bytes
from jaxpar.layout.memory.host import check_offload
from jaxpar.training.run.plan_table import plan_rows
from jaxpar.training.run.trainer import Trainer
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.small_run import SmallRun, small
from tests.traced_bytes import traced_bytes
from tests.training.residency.unpinned import unpinned_mesh

LAYERS, FLOAT = 4, 4
SEVERAL = ("layer_input", "query", "attention_output", "mlp_up")


def run_of(remat: dict[str, str] | str, **sections: dict[str, Any]) -> SmallRun:
    return SmallRun(small(model={"layers": LAYERS}, memory={"remat": remat}, **sections))


def offloading(*names: str, preset: str = "full") -> tuple[dict[str, str], dict[str, str]]:
    """A remat map that saves `names`, and one that offloads them."""
    return {"preset": preset} | dict.fromkeys(names, "save"), {"preset": preset} | dict.fromkeys(names, "offload")


CASES: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "input, one device": (("layer_input",), "full", {}),
    "several, fsdp, tensor and context": (
        SEVERAL,
        "gemm_last",
        {"fsdp": 2, "tensor": 2, "context": 2, "zero": 3, "microbatches": 2},
    ),
    "several, 1f1b": (SEVERAL, "full", {"pipe": 2, "fsdp": 2, "zero": 2, "microbatches": 4}),
    "input, zb-h1, branching": (
        ("layer_input", "key"),
        "none",
        {"pipe": 2, "microbatches": 4, "schedule": "zb-h1", "pipe_ticks": "branching"},
    ),
    "several, breadth-first": (
        SEVERAL,
        "gemm_last",
        {"pipe": 2, "fsdp": 2, "zero": 3, "microbatches": 4, "schedule": "breadth-first", "virtual_stages": 2},
    ),
}


@pytest.mark.matrix(quick=("input, one device",), ci=2)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_the_same_bits_as_without(name: str):
    names, preset, parallel = CASES[name]
    on_device, on_host = (run_of(remat, parallel=parallel) for remat in offloading(*names, preset=preset))
    (loss, gradients), (found_loss, found) = on_device.loss_and_gradients(), on_host.loss_and_gradients()
    assert found_loss == loss
    assert_same_bits(found, gradients)


def test_what_is_offloaded_counts_as_the_hosts():
    """The input of every layer of this rank's rows, in float32; what the stash has on the device is less by that."""
    parallel = {"fsdp": 2, "tensor": 2, "zero": 3, "microbatches": 2}
    on_device, on_host = (run_of(remat, parallel=parallel).step.layout for remat in offloading("layer_input"))
    data, model = on_host.config.data, on_host.config.model
    traced, none = (traced_bytes(layout.config, layout.plan) for layout in (on_host, on_device))
    tokens = data.batch_size // 4 * data.sequence_length // 2
    assert offloaded_bytes(on_host.config, on_host.plan) == traced.offloaded == LAYERS * tokens * model.embed * FLOAT
    assert none.offloaded == offloaded_bytes(on_device.config, on_device.plan) == 0
    assert traced.stash == none.stash - traced.offloaded == 0


def test_the_plan_states_what_lies_in_host_memory():
    rows = lambda step: plan_rows(step.layout, step.mesh, "")
    (row,) = [row for row in rows(run_of(offloading("layer_input", "query")[1]).step) if row[0] == "offload"]
    assert row[1:] == ("256.0 KiB", "layer_input, query offloaded: 256.0 KiB in host memory, for each device")
    assert not [row for row in rows(run_of("gemm_last").step) if row[0] == "offload"]


def test_a_device_without_pinned_memory_is_one_sentence():
    step = run_of(offloading("layer_input", "query")[1]).step
    check_offload(step.layout, step.mesh)  # CPU devices have some
    with refused("memory.remat:", "layer_input, query", "pinned_host", "Apple M2", "expected save"):
        check_offload(step.layout, unpinned_mesh("Apple M2"))


def test_more_than_the_machine_has_is_one_sentence():
    step = run_of(offloading("layer_input")[1], parallel={"fsdp": 4, "zero": 3}).step
    needed = 4 * offloaded_bytes(step.layout.config, step.layout.plan)
    check_offload(step.layout, step.mesh, limit=needed)
    with refused("32.00 KiB of host memory for each of 4 devices", "128.00 KiB in all"):
        check_offload(step.layout, step.mesh, limit=needed - 1)


def test_a_trainer_refuses_what_the_machine_has_no_room_for_before_it_makes_anything():
    """The inputs of 10,000 layers, 128 MiB each."""
    config = small(
        model={"layers": 10_000}, data={"sequence_length": 2**20, "batch_size": 1},
        memory={"remat": offloading("layer_input")[1]},
    )  # fmt: skip
    with refused("memory.remat", "layer_input", "1.22 TiB of host memory"):
        Trainer(config, devices=jax.devices()[:1])


def test_hidden_activations_of_a_feed_forward_in_tiles_are_not_offloaded():
    with refused("memory.remat.mlp_up", "expected recompute", "memory.mlp_tiles: 2"):
        SmallRun(small(memory={"remat": {"mlp_up": "offload"}, "mlp_tiles": 2}))
