"""What cannot fit is refused before anything is allocated."""

import gc
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxpar.config import DistributedConfig, UserError
from jaxpar.distributed.devices import MOST_VIRTUAL, prepare_devices
from jaxpar.layout.memory import device as device_memory
from jaxpar.layout.memory.device import needed_bytes
from jaxpar.layout.memory.estimate import MemoryEstimate, estimate_memory
from jaxpar.layout.memory.state_bytes import offloaded_state_bytes, state_bytes
from jaxpar.memory.streaming import PIECE_BYTES, PIECES
from jaxpar.observe import memory_report
from jaxpar.pages.units import size
from jaxpar.training.run import out_of_memory
from jaxpar.training.run.out_of_memory import (
    ESTIMATE_TOO_HIGH,
    check_batch_fits,
    check_estimate_fits,
    check_state_fits,
    check_step_fits,
    explained,
)
from jaxpar.training.run.run import Run
from jaxpar.training.run.trainer import Trainer
from jaxpar.training.step.train_step import TrainStep
from tests.sentences import refused
from tests.small_run import SmallRun, small

LAYOUT = ["pipe=1", "replica=1", "fsdp=8", "expert=1", "context=1", "tensor=1", "microbatches=1"]


def test_a_state_larger_than_the_machine_is_one_sentence():
    overrides = [*(f"parallel.{axis}" for axis in LAYOUT), "memory.remat=full"]
    with refused("parallel:", "weights and optimizer state", " GiB", "8 devices", "parallel.fsdp", "parallel.zero: 3"):
        Trainer("configs/llama3_70b.yaml", overrides=overrides)


def test_a_step_that_this_machine_cannot_hold_is_refused_before_it_is_compiled(monkeypatch: pytest.MonkeyPatch):
    """The README's command for 8 GPUs, on a machine of 56 GiB: making the trainer compiles nothing."""
    in_memory(monkeypatch, 56 * 2**30, 8)
    with refused("parallel: the step needs about ", "for this machine's 8 devices", "there are 56.00 GiB") as raised:
        Trainer("configs/llama3_1b.yaml", overrides=["parallel.tensor=2"], devices=jax.devices()[:8])
    message = str(raised.value)
    assert "of saved activations" in message and "the nearest that fits: " in message
    assert "host" not in message, "these devices use the host's memory"


def test_an_estimate_refuses_only_what_is_beyond_its_error(monkeypatch: pytest.MonkeyPatch):
    step = wide_step(memory={"remat": "none"})
    least = round(4 * estimate_of(step).device / ESTIMATE_TOO_HIGH)
    in_memory(monkeypatch, least + 1, 4)
    check_estimate_fits(step.layout, step.mesh)
    in_memory(monkeypatch, least - 1, 4)
    with refused("parallel: the step needs about ", size(4 * estimate_of(step).device, 2)):
        check_estimate_fits(step.layout, step.mesh)
    on_a_gpu(monkeypatch, 1000)
    check_estimate_fits(step.layout, step.mesh)


@pytest.mark.parametrize(("offload", "counted"), [("host", True), ("file", False)])
def test_devices_in_the_hosts_memory_hold_there_what_is_offloaded_too(offload: str, counted: bool, monkeypatch):
    model, data = WIDE | {"layers": 64, "embed": 512, "mlp": 2048}, {"sequence_length": 64, "batch_size": 1}
    step = wide_step(memory={"optimizer_offload": offload}, model=model, data=data)
    estimate = estimate_of(step)
    offloaded = (estimate.host - PIECES * PIECE_BYTES) * counted  # pieces that pass are in the same memory already
    held = estimate.device + offloaded
    assert offloaded > estimate.device or not counted
    in_memory(monkeypatch, round(4 * held / ESTIMATE_TOO_HIGH) + 1, 4)
    check_estimate_fits(step.layout, step.mesh)
    in_memory(monkeypatch, round(4 * held / ESTIMATE_TOO_HIGH) - 1, 4)
    words = [f"{size(offloaded, 2)} of what is offloaded"] * counted
    with refused("parallel: the step needs about ", size(4 * held, 2), *words) as raised:
        check_estimate_fits(step.layout, step.mesh)
    assert "host" not in str(raised.value)


def test_a_single_device_in_the_hosts_memory_holds_its_offloaded_state_there(monkeypatch: pytest.MonkeyPatch):
    step = SmallRun(small(memory={"optimizer_offload": "host"})).step
    layout, mesh = step.layout, step.mesh
    in_memory(monkeypatch, state_bytes(layout) - 1, 1)
    with refused("parallel: weights and optimizer state take", size(state_bytes(layout), 2)):
        check_state_fits(layout, mesh)
    monkeypatch.setattr(out_of_memory, "separate_memory", lambda mesh: True)
    check_state_fits(layout, mesh)


WIDE: dict[str, int] = {"layers": 4, "embed": 64, "heads": 8, "kv_heads": 8, "mlp": 256}
"""Activations are most of what its step takes."""


def estimate_of(step: TrainStep) -> MemoryEstimate:
    return estimate_memory(step.layout.config, step.layout.plan)


def in_memory(monkeypatch: pytest.MonkeyPatch, limit: int, devices: int) -> None:
    """So many devices share `limit` bytes."""
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda mesh: (limit, devices))


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """The devices have `limit` bytes of their own each."""
    in_memory(monkeypatch, limit, 1)
    monkeypatch.setattr(out_of_memory, "separate_memory", lambda mesh: True)


def wide_step(**sections: Any) -> TrainStep:
    data = {"sequence_length": 256, "batch_size": 32}
    return SmallRun(small(**{"model": WIDE, "data": data, **sections})).step


def test_a_step_larger_than_a_gpu_names_what_it_takes_and_the_nearest_that_fits(monkeypatch: pytest.MonkeyPatch):
    step = wide_step(memory={"remat": "none"})
    estimate = estimate_of(step)
    needed = round(1.1 * estimate.device)
    limit = needed - estimate.saved_activations // 3
    on_a_gpu(monkeypatch, limit)
    takes = (f"{size(needed, 2)} per device", size(limit, 2), f"{size(estimate.saved_activations, 2)} of saved")
    with refused("parallel:", *takes, "fits: parallel.microbatches: 2 (about "):
        check_step_fits(step.layout, step.mesh, needed)


def test_virtual_devices_share_the_machines_memory(monkeypatch: pytest.MonkeyPatch):
    step = wide_step(memory={"remat": "none"})
    needed = round(1.1 * estimate_of(step).device)
    in_memory(monkeypatch, 4 * needed, 4)
    check_step_fits(step.layout, step.mesh, needed)
    in_memory(monkeypatch, 4 * needed - 1, 4)
    total, limit = size(4 * needed, 2), size(4 * needed - 1, 2)
    with refused(f"{size(needed, 2)} per device", f"{total} for ", "4 devices", f" {limit};", "nearest that fits: "):
        check_step_fits(step.layout, step.mesh, needed)


ONE_ROW = {"sequence_length": 1024, "batch_size": 1}


def test_where_there_is_no_smaller_microbatch_layers_keep_less(monkeypatch: pytest.MonkeyPatch):
    """`auto` keeps what fits; where it was `auto` that kept too much, layers keep their inputs alone."""
    step = wide_step(memory={"remat": "gemm_last"}, data=ONE_ROW)
    needed, saved = estimate_of(step).device, estimate_of(step).saved_activations
    limit = needed - saved // 5
    on_a_gpu(monkeypatch, limit)
    with refused("the nearest that fits: memory.remat: auto (about ") as raised:
        check_step_fits(step.layout, step.mesh, needed)
    assert "not enough alone" not in str(raised.value)
    step = wide_step(memory={"remat": "auto"}, data=ONE_ROW)
    on_a_gpu(monkeypatch, estimate_of(step).device - saved // 5)
    with refused("the nearest that fits: memory.remat: full (about "):
        check_step_fits(step.layout, step.mesh, estimate_of(step).device)


@pytest.mark.long
def test_changes_are_made_together_where_none_suffices_alone(monkeypatch: pytest.MonkeyPatch):
    step = wide_step(memory={"remat": "none"}, data={"sequence_length": 256, "batch_size": 4})
    needed = estimate_of(step).device
    both = wide_step(
        memory={"remat": "full"}, data={"sequence_length": 256, "batch_size": 4}, parallel={"microbatches": 4}
    )
    on_a_gpu(monkeypatch, estimate_of(both).device)
    with refused(
        "parallel:", ": parallel.microbatches: 4 with memory.remat: full (about ", "alone: parallel.microbatches: "
    ):
        check_step_fits(step.layout, step.mesh, needed)


def test_a_state_that_goes_to_the_host_may_take_the_weights_of_layers_along(monkeypatch: pytest.MonkeyPatch):
    """A deep model: without its state, weights and gradients are most of what is left."""
    model = {"layers": 64, "embed": 512, "heads": 8, "kv_heads": 8, "mlp": 2048}
    sections = {"model": model, "data": {"sequence_length": 64, "batch_size": 1}}
    away = {"optimizer_offload": "host", "weights_offload": "host", "remat": "full"}
    limit = estimate_of(wide_step(memory=away, **sections)).device * 21 // 20
    on_a_gpu(monkeypatch, limit)
    step = wide_step(**sections)
    with refused("the nearest that fits: ", "memory.optimizer_offload: host with memory.weights_offload: host"):
        check_step_fits(step.layout, step.mesh, estimate_of(step).device)


@pytest.mark.long
def test_where_nothing_fits_the_smallest_is_named(monkeypatch: pytest.MonkeyPatch):
    step = wide_step()
    on_a_gpu(monkeypatch, 2**20)
    with refused("no change of settings", "fits (at least ", "shard over more"):
        check_step_fits(step.layout, step.mesh, estimate_of(step).device)


def exhausted() -> Exception:
    return jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.")


def test_memory_that_runs_out_in_a_step_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    trainer = Run(small(), devices=jax.devices()[:1])
    real = trainer.compiled

    class Failing:
        memory_analysis = real.memory_analysis

        def __call__(self, *_: Any) -> None:
            raise exhausted()

    trainer.__dict__["compiled"] = Failing()
    needed = needed_bytes(real)
    assert needed is not None
    on_a_gpu(monkeypatch, needed)
    with pytest.raises(UserError) as raised:
        trainer.step()
    start = f"parallel: XLA found no room for 3.00 GiB more on a device; the step needs {size(needed, 2)} per device"
    assert str(raised.value).startswith(start)
    assert "the nearest that fits: " in str(raised.value)


HOST_ERROR = (
    "RESOURCE_EXHAUSTED: Out of host memory while trying to allocate 3221225472 bytes with allocator xla_gpu_host_bfc "
    "on device 0."
)


def test_memory_that_runs_out_while_compiling_is_a_sentence_and_other_errors_of_xla_pass():
    step = SmallRun(small()).step
    with refused("no room for 3.00 GiB more on a device", "the step needs about"), explained(step.layout, step.mesh):
        raise exhausted()
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), explained(step.layout, step.mesh):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_host_memory_that_runs_out_is_distinguished_from_a_devices():
    step = SmallRun(small(memory={"optimizer_offload": "host"})).step
    state = size(offloaded_state_bytes(step.layout), 2)
    with (
        refused("3.00 GiB", "the host's pinned memory", f"{state} of master weights") as raised,
        explained(step.layout, step.mesh),
    ):
        raise jax.errors.JaxRuntimeError(HOST_ERROR)
    assert "expected a larger XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" in str(raised.value)
    assert "nearest" not in str(raised.value)


def test_a_plan_may_count_on_what_xla_pins_and_no_more(monkeypatch: pytest.MonkeyPatch):
    config = small()
    machine = device_memory.host_memory()
    assert device_memory.host_limit(config, 8) == machine, "virtual devices pin what they like"
    monkeypatch.setattr(device_memory.jax, "local_devices", lambda: [SimpleNamespace(platform="gpu")])
    monkeypatch.setattr(device_memory, "host_memory", lambda: 2**41)
    monkeypatch.delenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", raising=False)
    assert device_memory.host_limit(config, 8) == 64 * 2**30
    assert device_memory.limit_words(config) == "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB leaves this process"
    monkeypatch.setenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "1800")
    assert device_memory.host_limit(config, 8) == 1800 * 2**30


def test_a_batch_larger_than_the_machine_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    step = SmallRun(small(data={"prefetch": 3})).step
    check_batch_fits(step.layout, step.mesh)
    monkeypatch.setattr(out_of_memory, "host_memory", lambda: 1000)
    with refused("data.batch_size x sequence_length", "data.prefetch (3)", "1000 B", "fewer rows or tokens"):
        check_batch_fits(step.layout, step.mesh)


def test_the_trainer_refuses_a_step_before_it_allocates(monkeypatch: pytest.MonkeyPatch):
    trainer = Run(small(), devices=jax.devices()[:1])
    limit = state_bytes(trainer.layout) + 2**10
    on_a_gpu(monkeypatch, limit)
    with refused("parallel:", "per device", size(limit, 2)):
        trainer.step()
    assert trainer.steps_done == 0


def test_a_machine_stands_in_for_so_many_devices_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    with refused("takes 4096 devices", f"at most {MOST_VIRTUAL}"):
        prepare_devices(4096, DistributedConfig())


def test_a_trainer_names_what_lies_in_memory():
    def held(name: str) -> tuple[int, int]:
        """Arrays and bytes, of all trainers that there are in this process."""
        gc.collect()
        found = {holding.name: holding for holding in memory_report().holdings}
        return (found[name].arrays, found[name].device_bytes) if name in found else (0, 0)

    names = "master weights", "moments"
    before = {name: held(name) for name in names}
    trainer = Run(small(), devices=jax.devices()[:1])
    trainer.step()
    grown = {name: tuple(b - a for a, b in zip(before[name], held(name), strict=True)) for name in names}
    leaves = jax.tree.leaves(trainer.state.master)
    assert grown["master weights"] == (len(leaves), sum(leaf.nbytes for leaf in leaves))
    assert grown["moments"] == (2 * len(leaves), 2 * sum(leaf.nbytes for leaf in leaves))
    batch = trainer.layout.abstract_batch()
    assert held("batches")[0] >= len(batch)


def test_a_row_larger_than_a_piece_passes_whole_three_at_a_time():
    """Two layers of 2048 x 16384: a row of the feed-forward has 128 MiB of each of its three arrays."""
    wide = {"layers": 2, "embed": 2048, "heads": 8, "kv_heads": 8, "mlp": 16384}
    step = SmallRun(small(model=wide, memory={"optimizer_offload": "host"})).step
    assert estimate_of(step).optimizer == 3 * 3 * 4 * 2048 * 16384
