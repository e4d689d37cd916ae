"""Master weights and moments that rest outside the device: the same bits, through checkpoints of either kind."""

import errno
import os
from math import prod
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpar.config.reading.overrides import with_overrides
from jaxpar.layout.memory.state_bytes import offloaded_state_bytes
from jaxpar.layout.memory.state_storage import check_offloaded_state, offload_rows, streamed_bytes
from jaxpar.layout.state import weight_states
from jaxpar.memory.disk_array import DiskArray, load_disk_arrays
from jaxpar.optim.rule import is_stacked
from jaxpar.pages.units import size
from jaxpar.training.residency.initial import InitialWeight
from jaxpar.training.residency.weight_update import weight_updates
from jaxpar.training.step.train_step import TrainStep
from tests.same_bits import assert_same_bits
from tests.sentences import named, refused
from tests.small_run import SmallRun, small
from tests.traced import operations
from tests.training.residency.unpinned import unpinned_mesh

STEPS = 3


pytestmark = pytest.mark.usefixtures("in_pieces")


def run_of(name: str, offload: str, **sections: dict[str, Any]) -> SmallRun:
    config = small(model={"layers": 4}, memory={"optimizer_offload": offload}, **sections)
    return SmallRun(with_overrides(config, CASES[name]))


def states_of(name: str, offload: str, **sections: dict[str, Any]) -> tuple[list[tuple[float, float]], Any]:
    """Loss and gradient norm of some steps, and the last state as NumPy."""
    run = run_of(name, offload, **sections)
    state, metrics = run.advance(STEPS)
    stored = {_memory_of(leaf) for leaf in jax.tree.leaves((state.master, state.optimizer))}
    assert stored == {{"none": "device", "host": "pinned_host"}.get(offload, offload)}
    losses_and_norms = [(float(of_step.loss), float(of_step.grad_norm)) for of_step in metrics]
    return losses_and_norms, jax.device_get(load_disk_arrays(state))


def _memory_of(leaf: Any) -> str:
    return "file" if isinstance(leaf, DiskArray) else leaf.sharding.memory_kind


CASES = named("""
    adamw, one device: parallel.fsdp=1
    adamw with an average, fsdp, zero 3: parallel.fsdp=2 | optimizer.ema=0.9
    adamw, padded pipeline, zero 1: model.layers=3 | parallel.pipe=2 | parallel.fsdp=2 | parallel.zero=1 |
        parallel.microbatches=4 | optimizer.ema=0.9
    muon, tensor, zero 1: parallel.fsdp=2 | parallel.tensor=2 | parallel.zero=1 | optimizer.name=muon
    lion, tied, float16, zero 2: model.tied=true | precision.compute=float16 | parallel.fsdp=2 | parallel.zero=2 |
        optimizer.name=lion
    adafactor, zero 3: parallel.fsdp=2 | optimizer.name=adafactor
    adamw, moments in 8 bits: model.embed=64 | model.mlp=128 | precision.moments=int8 | parallel.fsdp=2
    """)  # fmt: skip


@pytest.mark.matrix(ci=2)
@pytest.mark.parametrize("name", CASES)
def test_the_state_is_the_same_bits_as_on_the_device(tmp_path: Path, name: str):
    before, state = states_of(name, "none")
    for offload in ("host", "file"):
        found, streamed = states_of(name, offload, run={"dir": str(tmp_path)})
        assert found == before
        assert_same_bits(streamed, state)


def step_of(offload: str, **sections: dict[str, Any]) -> TrainStep:
    return SmallRun(small(memory={"optimizer_offload": offload}, parallel={"fsdp": 2, "zero": 1}, **sections)).step


def test_a_machine_without_room_in_memory_is_one_sentence():
    step = step_of("host")
    needed = 2 * offloaded_state_bytes(step.layout)
    check_offloaded_state(step.layout, step.mesh, limit=needed)
    parts = f"{size(needed, 2)} of host memory", "2 devices", "expected memory.optimizer_offload: file", "more machines"
    with refused("memory.optimizer_offload: host", *parts):
        check_offloaded_state(step.layout, step.mesh, limit=needed - 2**20)


def test_a_disk_without_room_is_one_sentence():
    step = step_of("file", run={"dir": "/somewhere"})
    with refused("file takes", " on disk for 2 devices", "/somewhere/", "0 B free"):
        check_offloaded_state(step.layout, step.mesh, limit=0)


def test_a_disk_that_fills_up_meanwhile_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    step = step_of("file", run={"dir": str(tmp_path)})
    with refused("memory.offload_dir: ", " KiB more", "No space left on device"):
        step.residency.initial_state()


def test_a_device_without_pinned_memory_is_one_sentence():
    with refused("memory.optimizer_offload: host", "pinned_host", "Apple M2", "expected none or file"):
        check_offloaded_state(step_of("host").layout, unpinned_mesh("Apple M2"))


def test_the_plan_states_where_the_state_is_stored_and_what_moves():
    """AdamW has 12 bytes a parameter, of which 4 go to the device twice from host memory."""
    rows = [row for offload in ("none", "host", "file") for row in offload_rows(step_of(offload).layout, "cpu")]
    assert [name for name, *_ in rows] == ["optimizer offload"] * 2
    host = step_of("host").layout
    there, back = streamed_bytes(host)
    assert (there, back) == (4 * back / 3, offloaded_state_bytes(host))
    assert "in pinned host memory; a step moves" in rows[0][2]
    assert "in files in " in rows[1][2]


def test_files_have_no_name_while_they_are_in_use(tmp_path: Path):
    """So a run that is killed leaves nothing, and no file of another run is ever read."""
    state = step_of("file", run={"dir": str(tmp_path)}).residency.initial_state()
    assert all(isinstance(leaf, DiskArray) for leaf in jax.tree.leaves(state.optimizer))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.long
def test_a_state_in_files_whose_update_was_interrupted_takes_no_step_and_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = SmallRun(small(memory={"optimizer_offload": "file"}, run={"dir": str(tmp_path)}))
    state, written = run.step.residency.initial_state(), []
    real = DiskArray.write

    def write(array: DiskArray, first: int, rows: Any) -> None:
        written.append(first)
        if len(written) == 5:
            raise KeyboardInterrupt
        real(array, first, rows)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(DiskArray, "write", write)
        with pytest.raises(KeyboardInterrupt):
            run.step.residency.advance(run.step.train, state, run.batch(0), run.step.arguments)
    with refused("interrupted", "last checkpoint"):
        run.step.residency.advance(run.step.train, state, run.batch(0), run.step.arguments)
    with refused("interrupted", "last checkpoint"):
        run.step.residency.saved().outgoing(state)


@pytest.mark.matrix(ci=1)
@pytest.mark.parametrize("name", ["adamw, padded pipeline, zero 1", "adamw, moments in 8 bits"])
def test_a_state_on_the_host_begins_as_on_the_device_and_is_made_in_pieces(name: str):
    """A weight of all layers may be larger than the device."""
    whole = jax.device_get(run_of(name, "none").step.residency.initial_state())
    step = run_of(name, "host").step
    assert_same_bits(jax.device_get(step.residency.initial_state()), whole)
    layout, largest = step.layout, 0
    abstract, seed = layout.abstract_state(step.mesh), jax.ShapeDtypeStruct((), "uint32")
    specs, likes = jax.tree.leaves(layout.specs), weight_states(abstract.master, abstract.optimizer)
    for index, (spec, like, update) in enumerate(zip(specs, likes, weight_updates(layout), strict=True)):
        if not is_stacked(spec):
            continue
        weight = InitialWeight(layout, index, like, update)
        rows = update.rows(weight.local)
        assert rows is not None
        made = device_bytes(lambda seed, weight=weight: step.residency.stored(weight, seed), seed)
        assert made <= 4 * layout.plan.axes.pipe * rows * prod(spec.shape[1:])
        largest = max(largest, made)
    assert largest < max(4 * prod(spec.shape) for spec in jax.tree.leaves(layout.specs) if is_stacked(spec))


def device_bytes(function: Any, *arguments: Any) -> int:
    """Bytes of the largest array that `function` makes in device memory, all devices' parts of it together. XLA
    allocates a filled array where it goes, so one that is only moved to the host is not made on the device."""
    equations = [equation for equation, _ in operations(function, *arguments)]
    moved = {id(v) for one in equations if one.primitive.name == "device_put" for v in one.invars}
    filled = lambda one: one.primitive.name == "broadcast_in_dim" and {id(v) for v in one.outvars} <= moved
    made = [v.aval for one in equations if not filled(one) for v in one.outvars]
    return max(a.size * a.dtype.itemsize for a in made if a.memory_space == jax.memory.Space.Device)
