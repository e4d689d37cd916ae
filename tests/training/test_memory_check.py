"""What cannot fit is refused before anything is allocated."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxpar.config import DistributedConfig, UserError
from jaxpar.mesh.devices import MOST_VIRTUAL, prepare_devices
from jaxpar.observe import memory_report
from jaxpar.training import memory_check, out_of_memory
from jaxpar.training.memory_check import mebibytes, memory_limit, state_bytes
from jaxpar.training.memory_estimate import estimate_memory, estimated_bytes, fixed_bytes, largest_piece
from jaxpar.training.out_of_memory import check_batch_fits, check_state_fits, check_step_fits, explained
from jaxpar.training.step import TrainStep
from jaxpar.training.trainer import Trainer
from tests.sentences import refused
from tests.small_run import SmallRun, small

LAYOUT = ["pipe=1", "replica=1", "fsdp=8", "expert=1", "context=1", "tensor=1", "microbatches=1"]


def test_a_state_larger_than_the_machine_is_one_sentence():
    overrides = [f"parallel.{axis}" for axis in LAYOUT]
    with pytest.raises(UserError, match=r"weights and optimizer state take \d+.\d\d GiB on this machine's 8 devices"):
        Trainer("configs/llama3_70b.yaml", overrides=overrides)


def test_a_small_run_fits():
    step = SmallRun(small()).step
    check_state_fits(step)
    check_step_fits(step, memory_limit(step)[0])


WIDE: dict[str, int] = {"layers": 4, "embed": 64, "heads": 8, "kv_heads": 8, "mlp": 256}
"""Activations are most of what its step takes."""


def wide_step(**sections: Any) -> TrainStep:
    data = {"sequence_length": 256, "batch_size": 32}
    return SmallRun(small(**{"model": WIDE, "data": data, **sections})).step


def test_a_step_larger_than_a_gpu_names_what_it_takes_and_the_nearest_that_fits(monkeypatch: pytest.MonkeyPatch):
    step = wide_step(memory={"remat": "none"})
    estimate = estimate_memory(step)
    needed = round(1.1 * estimate.device)
    limit = needed - estimate.saved_activations // 3
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (limit, 1))
    with pytest.raises(UserError) as raised:
        check_step_fits(step, needed)
    text = str(raised.value)
    assert f"the step needs {mebibytes(needed)} per device, and there are {mebibytes(limit)}" in text
    assert f"{mebibytes(estimate.saved_activations)} of saved activations" in text
    assert "the nearest that fits: parallel.microbatches: 2 (about " in text


def test_virtual_devices_share_the_machines_memory(monkeypatch: pytest.MonkeyPatch):
    """What would fit one of them does not fit all: refused before anything is allocated."""
    step = wide_step(memory={"remat": "none"})
    needed = round(1.1 * estimate_memory(step).device)
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (4 * needed, 4))
    check_step_fits(step, needed)
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (4 * needed - 1, 4))
    with pytest.raises(UserError) as raised:
        check_step_fits(step, needed)
    total, limit = mebibytes(4 * needed), mebibytes(4 * needed - 1)
    assert f"{mebibytes(needed)} per device, {total} for this machine's 4 devices, and there are {limit}; by" in str(
        raised.value
    )
    assert "the nearest that fits: " in str(raised.value)


ONE_ROW = {"sequence_length": 1024, "batch_size": 1}


def test_where_there_is_no_smaller_microbatch_layers_keep_less(monkeypatch: pytest.MonkeyPatch):
    """`auto` keeps what fits; where it was `auto` that kept too much, layers keep their inputs alone."""
    step = wide_step(memory={"remat": "gemm_last"}, data=ONE_ROW)
    needed, saved = estimated_bytes(step), estimate_memory(step).saved_activations
    limit = needed - saved // 5
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (limit, 1))
    with refused("the nearest that fits: memory.remat: auto (about ") as raised:
        check_step_fits(step, needed)
    assert "not enough alone" not in str(raised.value)
    step = wide_step(memory={"remat": "auto"}, data=ONE_ROW)
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (estimated_bytes(step) - saved // 5, 1))
    with refused("the nearest that fits: memory.remat: full (about "):
        check_step_fits(step, estimated_bytes(step))


@pytest.mark.long
def test_changes_are_made_together_where_none_suffices_alone(monkeypatch: pytest.MonkeyPatch):
    step = wide_step(memory={"remat": "none"}, data={"sequence_length": 256, "batch_size": 4})
    needed = estimated_bytes(step)
    both = wide_step(
        memory={"remat": "full"}, data={"sequence_length": 256, "batch_size": 4}, parallel={"microbatches": 4}
    )
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (estimated_bytes(both), 1))
    with pytest.raises(UserError, match=r"the nearest that fits: .* with .*; not enough alone: parallel"):
        check_step_fits(step, needed)


def test_a_state_that_goes_to_the_host_may_take_the_weights_of_layers_along(monkeypatch: pytest.MonkeyPatch):
    """A deep model: without its state, weights and gradients are most of what is left."""
    model = {"layers": 64, "embed": 512, "heads": 8, "kv_heads": 8, "mlp": 2048}
    sections = {"model": model, "data": {"sequence_length": 64, "batch_size": 1}}
    away = {"optimizer_offload": "host", "weights_offload": "host", "remat": "full"}
    limit = estimated_bytes(wide_step(memory=away, **sections)) * 21 // 20
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (limit, 1))
    step = wide_step(**sections)
    with refused("the nearest that fits: ", "memory.optimizer_offload: host with memory.weights_offload: host"):
        check_step_fits(step, estimated_bytes(step))


@pytest.mark.long
def test_where_nothing_fits_the_smallest_is_named(monkeypatch: pytest.MonkeyPatch):
    step = wide_step()
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (2**20, 1))
    with refused("no change of settings", "fits (at least ", "shard over more"):
        check_step_fits(step, estimated_bytes(step))


def exhausted() -> Exception:
    return jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.")


def test_memory_that_runs_out_in_a_step_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    trainer = Trainer(small(), devices=jax.devices()[:1])
    real = trainer.compiled

    class Failing:
        memory_analysis = real.memory_analysis

        def __call__(self, *_: Any) -> None:
            raise exhausted()

    trainer.__dict__["compiled"] = Failing()
    needed = memory_check.needed_bytes(real)
    assert needed is not None
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (needed, 1))
    with pytest.raises(UserError) as raised:
        trainer.step()
    start = f"parallel: XLA found no room for 3.00 GiB more on a device; the step needs {mebibytes(needed)} per device"
    assert str(raised.value).startswith(start)
    assert "the nearest that fits: " in str(raised.value)


def test_memory_that_runs_out_while_compiling_is_a_sentence():
    step = SmallRun(small()).step
    with refused("no room for 3.00 GiB more on a device", "the step needs about"), explained(step):
        raise exhausted()


HOST_ERROR = (
    "RESOURCE_EXHAUSTED: Out of host memory while trying to allocate 3221225472 bytes with allocator xla_gpu_host_bfc "
    "on device 0."
)


def test_host_memory_that_runs_out_is_told_from_a_devices():
    step = SmallRun(small(memory={"optimizer_offload": "host"})).step
    state = mebibytes(memory_check.pinned_state_bytes(step))
    with refused("3.00 GiB", "the host's pinned memory", f"{state} of master weights") as raised, explained(step):
        raise jax.errors.JaxRuntimeError(HOST_ERROR)
    assert "expected a larger XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" in str(raised.value)
    assert "nearest" not in str(raised.value)


def test_a_plan_may_count_on_what_xla_pins_and_no_more(monkeypatch: pytest.MonkeyPatch):
    step = SmallRun(small()).step
    machine = memory_check.host_memory()
    assert memory_check.host_limit(step, 8) == machine, "virtual devices pin what they like"
    monkeypatch.setattr(memory_check.jax, "local_devices", lambda: [SimpleNamespace(platform="gpu")])
    monkeypatch.setattr(memory_check, "host_memory", lambda: 2**41)
    monkeypatch.delenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", raising=False)
    assert memory_check.host_limit(step, 8) == 64 * 2**30
    assert memory_check.limit_words(step) == "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB leaves this process"
    monkeypatch.setenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "1800")
    assert memory_check.host_limit(step, 8) == 1800 * 2**30


def test_a_batch_larger_than_the_machine_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    step = SmallRun(small(data={"prefetch": 3})).step
    check_batch_fits(step)
    monkeypatch.setattr(out_of_memory, "host_memory", lambda: 1000)
    with pytest.raises(UserError, match=r"data\.batch_size x sequence_length: .* with data\.prefetch \(3\), and there"):
        check_batch_fits(step)


def test_other_errors_of_xla_pass():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), explained(SmallRun(small()).step):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_the_trainer_refuses_a_step_before_it_allocates(monkeypatch: pytest.MonkeyPatch):
    trainer = Trainer(small(), devices=jax.devices()[:1])
    limit = state_bytes(trainer.functions) + 2**10
    monkeypatch.setattr(out_of_memory, "memory_limit", lambda step: (limit, 1))
    with pytest.raises(UserError, match=r"the step needs .* per device, and there are"):
        trainer.step()
    assert trainer.steps_done == 0


def test_what_layers_keep_is_all_that_remat_changes_in_an_estimate():
    none, full = (wide_step(memory={"remat": remat}) for remat in ("none", "full"))
    kept = [estimate_memory(step).saved_activations for step in (none, full)]
    input_of_a_layer = 4 * 32 * 256 * WIDE["embed"]
    assert kept[1] == WIDE["layers"] * input_of_a_layer < kept[0] / 10
    assert estimated_bytes(none) - fixed_bytes(none) == kept[0]
    assert estimate_memory(none).optimizer == estimate_memory(full).optimizer == state_bytes(full)


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
    trainer = Trainer(small(), devices=jax.devices()[:1])
    trainer.step()
    grown = {name: tuple(b - a for a, b in zip(before[name], held(name), strict=True)) for name in names}
    leaves = jax.tree.leaves(trainer.state.master)
    assert grown["master weights"] == (len(leaves), sum(leaf.nbytes for leaf in leaves))
    assert grown["moments"] == (2 * len(leaves), 2 * sum(leaf.nbytes for leaf in leaves))
    batch = trainer.functions.abstract_batch()
    assert held("batches")[0] >= len(batch)


def test_a_row_larger_than_a_piece_passes_whole_three_at_a_time():
    """Two layers of 2048 x 16384: a row of the feed-forward has 128 MiB of each of its three arrays."""
    wide = {"layers": 2, "embed": 2048, "heads": 8, "kv_heads": 8, "mlp": 16384}
    step = SmallRun(small(model=wide, memory={"optimizer_offload": "host"})).step
    assert largest_piece(step) == 3 * 4 * 2048 * 16384
    assert estimate_memory(step).optimizer == pytest.approx(3 * largest_piece(step), abs=64)
