"""Whatever happens to the files of a checkpoint is noticed, named, and costs that checkpoint alone."""

import os
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.checkpoint import Checkpointer, CheckpointError
from tests.checkpoint.states import host_state, like, mesh_of, put
from tests.same_bits import assert_same_bits
from tests.sentences import refused


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A folder with intact checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("two_steps")
    checkpoints = Checkpointer(folder, keep_last=2, keep_every=None, report=print)
    for step in (1, 2):
        checkpoints.save(step, put(host_state(step), mesh_of(fsdp=8)), {"step": step})
    checkpoints.close()
    return folder


@pytest.fixture
def folder(two_steps, tmp_path):
    """A copy to damage."""
    return shutil.copytree(two_steps, tmp_path / "copy")


def files_of(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def test_a_flipped_bit_in_any_file_is_found_and_the_checkpoint_before_is_used(folder, checkpointer, reports):
    checkpoints = checkpointer(folder)
    files = files_of(folder / "00000002")
    assert len(files) >= 8
    for path in files:
        intact = path.read_bytes()
        places = {0, len(intact) // 2, len(intact) - 1}
        flipped = [intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :] for at in places]
        for damaged in (*flipped, intact[:-1], b"", intact + b"\0", None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            assert checkpoints.latest() == 1, (path, damaged)
            (report,) = reports
            assert report.startswith(f"checkpoint {folder}/00000002 is skipped, because ") and path.name in report
            if damaged is not None and len(damaged) != len(intact) and path.name != "manifest.json":
                assert f"has {len(damaged)} bytes instead of {len(intact)}" in report
            reports.clear()
        path.write_bytes(intact)
    assert checkpoints.latest() == 2
    assert_same_bits(checkpoints.restore(2, like(host_state(2), mesh_of(fsdp=4))), host_state(2))


def test_damaged_checkpoints_are_never_restored(folder, checkpointer):
    data = max(files_of(folder / "00000002"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 4
    data.write_bytes(content)
    wanted = like(host_state(2), mesh_of(fsdp=8))
    with refused("/00000002", "cannot be used", "is corrupt", error=CheckpointError):
        checkpointer(folder).restore(2, wanted)
    assert checkpointer(folder).facts(2) == {"step": 2}


def test_a_checkpoint_that_was_intact_when_last_read_is_not_trusted_once_damage_was_seen(folder, checkpointer):
    checkpoints = checkpointer(folder)
    assert checkpoints.latest() == 2
    (folder / "00000002" / "facts.json").unlink()
    assert checkpoints.latest() == 1
    with refused("/00000002", "facts.json is missing", error=CheckpointError):
        checkpoints.restore(2, like(host_state(2), mesh_of(fsdp=8)))


def test_damaged_facts_are_never_read(folder, checkpointer):
    facts = folder / "00000002" / "facts.json"
    facts.write_text(facts.read_text().replace("2", "3"))
    with refused("/00000002", "facts.json is corrupt", error=CheckpointError):
        checkpointer(folder).facts(2)


def test_without_any_intact_checkpoint_each_is_named_once(folder, checkpointer, reports):
    for step in ("00000001", "00000002"):
        (folder / step / "facts.json").unlink()
    assert checkpointer(folder).latest() is None
    assert reports == [
        f"checkpoint {folder}/{step} is skipped, because facts.json is missing" for step in ("00000002", "00000001")
    ]


def test_a_broken_checkpoint_is_moved_aside_by_the_next_save_of_its_step(folder, checkpointer, reports):
    checkpoints = checkpointer(folder)
    for number in (1, 2):
        (folder / "00000002" / "facts.json").unlink()
        left = [path.relative_to(folder / "00000002") for path in files_of(folder / "00000002")]
        reports.clear()
        checkpoints.save(2, {"x": jnp.full(3, float(number))}, {})
        assert reports == [
            f"checkpoint {folder}/00000002 was moved aside to 00000002.broken-{number}, because facts.json is missing"
        ]
        assert checkpoints.latest() == 2
        aside = folder / f"00000002.broken-{number}"
        assert [path.relative_to(aside) for path in files_of(aside)] == left
        restored = checkpoints.restore(2, like({"x": np.zeros(3, np.float32)}, mesh_of(fsdp=1)))
        assert restored["x"].tolist() == [number] * 3


def test_a_file_in_the_place_of_a_checkpoint_is_moved_aside_too(tmp_path, checkpointer):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "00000002").write_text("not a folder")
    checkpoints = checkpointer()
    checkpoints.save(2, {"x": jnp.ones(3)}, {})
    assert checkpoints.latest() == 2
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["00000002", "00000002.broken-1"]


LEFTOVERS = ("notes.txt", "state/checkpoint", "state/_strategy", "state/array_metadatas/process_7", "pieces/x/.zarray")


@pytest.mark.parametrize("name", LEFTOVERS)
def test_files_that_others_add_are_ignored(folder, checkpointer, name):
    """Orbax would take `state/checkpoint` for arrays of an old format, and `pieces` for arrays of the state."""
    (folder / "notes").mkdir()
    leftover = folder / "00000002" / name
    leftover.parent.mkdir(exist_ok=True, parents=True)
    leftover.write_text("the good one")
    checkpoints = checkpointer(folder)
    assert checkpoints.latest() == 2
    assert_same_bits(checkpoints.restore(2, like(host_state(2), mesh_of(fsdp=8))), host_state(2))


def test_a_checkpoint_under_the_name_of_another_step_is_not_used(folder, checkpointer, reports):
    (folder / "00000002").rename(folder / "00000007")
    checkpoints = checkpointer(folder)
    assert checkpoints.latest() == 1
    assert "00000007 is skipped" in reports[0] and "step 2" in reports[0]
    with refused("/00000007", "cannot be used", "step 2", error=CheckpointError):
        checkpoints.facts(7)
