"""A saved state comes back bit for bit, on any mesh, and only where it fits."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.checkpoint import Checkpointer, CheckpointError
from tests.checkpoint.states import host_state, like, mesh_of, put
from tests.same_bits import assert_same_bits
from tests.sentences import refused
from tests.training.run_folder.test_read_only import without_privileges

MESHES = [{"fsdp": 8}, {"fsdp": 2, "tensor": 4}, {"tensor": 2, "context": 2, "replica": 2}, {"fsdp": 3}, {"fsdp": 1}]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with one checkpoint, of step 7, saved on a (2, 4) mesh."""
    folder = tmp_path_factory.mktemp("saved")
    checkpointer = Checkpointer(folder, keep_last=1, keep_every=None, report=print)
    checkpointer.save(7, put(host_state(), mesh_of(fsdp=2, tensor=4)), {"config": {"seed": 3}, "loss": 2.5})
    checkpointer.close()
    return folder


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_a_state_is_restored_bit_for_bit_on_another_mesh(saved, checkpointer, axes):
    restored = checkpointer(saved).restore(7, like(host_state(), mesh := mesh_of(**axes)))
    assert_same_bits(restored, host_state())
    assert restored["master"]["up"].sharding.mesh == mesh


def test_latest_and_facts_give_back_what_was_saved(saved, checkpointer, reports):
    assert checkpointer(saved).latest() == 7
    assert checkpointer(saved).facts(7) == {"config": {"seed": 3}, "loss": 2.5}
    assert reports == []


def test_facts_that_are_bytes_are_files_of_their_own(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep_last=2, keep_every=None, report=print)
    state, contents = put(host_state(), mesh_of(fsdp=1)), {"one": bytes(range(256)), "two": b""}
    checkpointer.save(1, state, {"loss": 2.5} | contents)
    checkpointer.save(2, state, {"loss": 2.5})
    checkpointer.wait()
    assert checkpointer.facts(1) == {"loss": 2.5, "contents": ["one", "two"]}
    assert (checkpointer.contents(1), checkpointer.contents(2)) == (contents, {})
    file = tmp_path / "00000001" / "one.bin"
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(CheckpointError, match=r"one\.bin is corrupt"):
        checkpointer.contents(1)
    checkpointer.close()


def wrong(change):
    """The stand-ins of the saved state after `change` edits them."""
    wanted = like(host_state(), mesh_of(fsdp=4))
    change(wanted)
    return wanted


def resize(state):
    up = state["master"]["up"]
    state["master"]["up"] = jax.ShapeDtypeStruct((8, 16, 24), up.dtype, sharding=up.sharding)


def recast(state):
    up = state["master"]["up"]
    state["master"]["up"] = jax.ShapeDtypeStruct(up.shape, jnp.bfloat16, sharding=up.sharding)


def add(state):
    state["master"]["bias"] = state["master"]["scale"]


def drop(state):
    del state["key"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (resize, ("leaf master/up", "is float32[4, 16, 24]", "float32[8, 16, 24] is wanted")),
        (recast, ("leaf master/up", "is float32[4, 16, 24]", "bfloat16[4, 16, 24] is wanted")),
        (add, ("no leaf master/bias", "float32[4, 16]")),
        (drop, ("holds a leaf key", "uint32[2]")),
    ],
)
def test_a_state_of_another_form_is_refused_in_one_sentence(saved, checkpointer, change, parts):
    with refused(*parts, error=CheckpointError):
        checkpointer(saved).restore(7, wrong(change))


def test_several_differences_name_the_first_and_count_the_rest(saved, checkpointer):
    with refused("leaf master/up", "2 other leaves", error=CheckpointError):
        checkpointer(saved).restore(7, wrong(lambda state: (resize(state), add(state), drop(state))))


def test_a_step_that_is_not_there_is_named_with_those_that_are(saved, checkpointer):
    for use in (lambda one: one.facts(8), lambda one: one.restore(8, {})):
        with refused("no checkpoint of step 8", "steps there: 7", error=CheckpointError):
            use(checkpointer(saved))


def test_the_state_may_be_donated_as_soon_as_save_returns(checkpointer):
    mesh = mesh_of(fsdp=8)
    want = {"w": np.arange(2**20, dtype=np.float32).reshape(1024, 1024), "replicated": np.ones((7, 2**15), np.float32)}
    state = put(want, mesh)
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: -x - 1, tree), donate_argnums=0)
    jax.block_until_ready(overwrite(put(want, mesh)))
    checkpoints = checkpointer()
    checkpoints.save(1, state, {})
    for _ in range(4):
        state = overwrite(state)
    jax.block_until_ready(state)
    assert_same_bits(checkpoints.restore(1, like(want, mesh)), want)


def test_saving_an_intact_step_again_is_refused_and_changes_nothing(checkpointer, tmp_path):
    mesh = mesh_of(fsdp=8)
    checkpoints = checkpointer()
    checkpoints.save(1, put(host_state(1), mesh), {"first": True})
    with refused("00000001", "exists already", "nothing was written", error=CheckpointError):
        checkpoints.save(1, put(host_state(2), mesh), {"first": False})
    assert checkpoints.facts(1) == {"first": True}
    assert_same_bits(checkpoints.restore(1, like(host_state(1), mesh)), host_state(1))


def test_only_arrays_of_plain_dtypes_are_saved(checkpointer, tmp_path):
    checkpoints = checkpointer()
    with refused("leaf a/0", "float", "jax.Array", error=TypeError):
        checkpoints.save(1, {"a": [1.0]}, {})
    with refused("leaf rng", "jax.random.key_data", error=TypeError):
        checkpoints.save(1, {"rng": jax.random.key(0)}, {})
    with pytest.raises(ValueError, match="'a/b'"):
        checkpoints.save(1, {"a/b": jnp.ones(1)}, {})
    with refused("leaf empty", "no elements", "[0, 4]", error=ValueError):
        checkpoints.save(1, {"empty": jnp.ones((0, 4))}, {})
    with refused("state", "no leaves", error=ValueError):
        checkpoints.save(1, {}, {})
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoints.save(1, {"a": jnp.ones(1)}, {"facts": object()})
    assert checkpoints.latest() is None


def save_all(checkpoints, *steps: int) -> None:
    """A small state at each step, saved to its end."""
    for step in steps:
        checkpoints.save(step, put({"x": np.float32(step)}, mesh_of(fsdp=8)), {})
    checkpoints.wait()


def test_old_checkpoints_go_once_a_new_one_is_complete(checkpointer, tmp_path):
    checkpoints = checkpointer(keep_last=2, keep_every=4)
    save_all(checkpoints, *range(1, 8))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["00000004", "00000006", "00000007"]


def test_checkpoints_after_skipped_steps_push_no_healthy_one_out_also_after_a_restart(checkpointer, tmp_path):
    mesh = mesh_of(fsdp=8)

    def save(*skipped_at: tuple[int, int]) -> list[str]:
        checkpoints = checkpointer(keep_last=1)
        for step, skipped in skipped_at:
            checkpoints.save(step, put({"x": np.float32(step)}, mesh), {"skipped_in_row": skipped})
        checkpoints.wait()
        assert checkpoints.last_healthy(2) is None
        assert checkpoints.last_healthy(9) == (9 if skipped_at[-1] == (9, 0) else 4)
        return sorted(os.listdir(tmp_path / "checkpoints"))

    before = checkpointer()
    before.save(3, put({"x": np.float32(3)}, mesh), {})
    before.wait()
    assert save((4, 0), (5, 1), (6, 2)) == ["00000004", "00000005", "00000006"]
    assert save((7, 3), (8, 4)) == ["00000004", "00000005", "00000006", "00000007", "00000008"]
    assert save((9, 0)) == ["00000009"]


def test_pruning_neither_counts_nor_deletes_broken_checkpoints(checkpointer, tmp_path):
    checkpoints = checkpointer(keep_last=2)
    save_all(checkpoints, 10, 20)
    (tmp_path / "checkpoints" / "00000020" / "facts.json").unlink()
    save_all(checkpoints, 30)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["00000010", "00000020", "00000030"]


def test_a_corrupt_newer_checkpoint_does_not_push_out_the_ones_saved_after_going_back(checkpointer, tmp_path):
    checkpoints = checkpointer(keep_last=1)
    save_all(checkpoints, 20, 30)
    (tmp_path / "checkpoints" / "00000030" / "facts.json").write_text("[]\n")  # As long as before.
    for step in (22, 24):
        checkpoints.save(step, put({"x": np.float32(step)}, mesh_of(fsdp=8)), {})
        assert checkpoints.latest() == step
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["00000024", "00000030"]


@pytest.mark.parametrize("keep", [{"keep_last": 0}, {"keep_every": 0}])
def test_keeping_nothing_is_refused(checkpointer, keep):
    with refused(f"checkpoint.{next(iter(keep))} is 0", "1 or more", error=CheckpointError):
        checkpointer(**keep)


def test_a_folder_that_cannot_be_made_is_one_sentence(checkpointer, tmp_path):
    (tmp_path / "file").write_text("in the way")
    checkpoints = checkpointer(tmp_path / "file")
    with refused("/00000001", "could not be written", "Not a directory", error=CheckpointError):
        checkpoints.save(1, {"x": jnp.ones(1)}, {})
    with refused("/file", "cannot be read", "Not a directory", error=CheckpointError):
        checkpoints.latest()


def test_an_optional_part_is_read_where_it_is_what_was_saved_and_left_out_where_it_is_not(saved, checkpointer):
    whole = checkpointer(saved).restore(7, wrong(lambda state: None), optional=["master"])
    assert_same_bits(whole, host_state())
    for change in (resize, lambda state: state["master"].pop("up")):
        wanted = wrong(change)
        found = checkpointer(saved).restore(7, wanted, optional=["master"])
        assert not jax.tree.leaves(found["master"])
        rest = {name: part for name, part in host_state().items() if name != "master"}
        assert_same_bits({name: part for name, part in found.items() if name != "master"}, rest)


def test_a_checkpoint_that_cannot_be_deleted_does_not_keep_the_others(checkpointer, reports, tmp_path):
    """As on NFS, where a file that somebody reads stays in its folder."""
    checkpoints, state = checkpointer(keep_last=1), {"x": jnp.ones(3)}
    checkpoints.save(1, state, {})
    checkpoints.wait()
    (tmp_path / "checkpoints/00000001/state").chmod(0o555)
    with without_privileges():
        for step in (2, 3, 4):
            checkpoints.save(step, state, {})
            checkpoints.wait()
        assert sorted(os.listdir(tmp_path / "checkpoints")) == ["00000001.removing", "00000004"]
        assert len(reports) == 3 and all("could not be deleted" in sentence for sentence in reports)
    (tmp_path / "checkpoints/00000001.removing/state").chmod(0o755)


@pytest.mark.parametrize("again", [False, True], ids=["first start", "later start"])
@pytest.mark.parametrize("mount", [".", "run", "run/checkpoints"])
def test_while_a_folder_of_a_run_is_gone_nothing_is_saved_elsewhere(checkpointer, tmp_path, mount, again):
    """As when a file system is not mounted for a minute, which leaves the empty folder that it is mounted on."""
    run, state = tmp_path / "disk" / "run", {"x": jnp.ones(3)}
    run.mkdir(parents=True)
    checkpoints = checkpointer(run / "checkpoints")
    checkpoints.save(1, state, {})
    checkpoints.wait()
    checkpoints = checkpointer(run / "checkpoints") if again else checkpoints
    mounted = tmp_path / "disk" / mount
    mounted.rename(tmp_path / "away")
    if mount != "run/checkpoints":  # that one is removed alone
        mounted.mkdir()
    with refused("/00000002", "could not be written", "No such file", error=CheckpointError):
        checkpoints.save(2, state, {})
    assert not mounted.exists() or not os.listdir(mounted)
    (tmp_path / "away").rename(mounted)
    checkpoints.save(3, state, {})
    assert checkpoints.latest() == 3
    assert sorted(os.listdir(run / "checkpoints")) == ["00000001", "00000003"]
