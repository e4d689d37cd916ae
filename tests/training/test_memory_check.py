"""What cannot fit is refused before anything is allocated."""

from __future__ import annotations

import jax
import pytest

from jaxpar.config import DistributedConfig, UserError
from jaxpar.mesh.devices import MOST_VIRTUAL, prepare_devices
from jaxpar.observe import memory_report
from jaxpar.training.memory_check import check_state_fits, check_step_fits, memory_limit
from jaxpar.training.trainer import Trainer
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


def test_a_step_larger_than_a_gpu_names_what_would_make_it_smaller():
    step = SmallRun(small()).step
    limit, sharing = memory_limit(step)
    assert sharing == 1
    with pytest.raises(UserError, match=r"the step needs .* memory.remat: full"):
        check_step_fits(step, limit + 1)


def test_a_machine_stands_in_for_so_many_devices_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(UserError, match=f"takes 4096 devices.*at most {MOST_VIRTUAL}"):
        prepare_devices(4096, DistributedConfig())


def test_a_trainer_names_what_lies_in_memory():
    trainer = Trainer(small(), devices=jax.devices()[:1])
    trainer.step()
    held = {holding.name: holding for holding in memory_report().holdings}
    leaves = jax.tree.leaves(trainer.state.master)
    assert held["master weights"].arrays == len(leaves)
    assert held["master weights"].device_bytes == sum(leaf.nbytes for leaf in leaves)
    assert held["moments"].device_bytes == 2 * held["master weights"].device_bytes
    batch = trainer.functions.abstract_batch()
    assert held["batches"].arrays >= len(batch)
