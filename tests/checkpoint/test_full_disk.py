"""A disk that fills up while a checkpoint is written: one sentence, nothing lost, and nothing else on the screen.

The kernel plays the full disk: it refuses to let any file of the process grow beyond a limit.
"""

import errno
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.checkpoint import CheckpointError, manifest
from tests.checkpoint.states import like, mesh_of, put
from tests.full_disk import full_disk
from tests.processes import run_python
from tests.same_bits import assert_same_bits
from tests.sentences import refused

LIMIT = 2**20


LARGE = {"x": np.ones((8, LIMIT // 4), np.float32), "y": np.ones((8, LIMIT // 4), np.float32)}


def test_a_failed_save_surfaces_in_wait_once_and_the_checkpoint_before_stays(checkpointer, tmp_path):
    state = put(LARGE, mesh := mesh_of(fsdp=8))
    checkpoints = checkpointer(keep_last=1)
    checkpoints.save(1, state, {})
    checkpoints.wait()
    with full_disk(LIMIT):
        checkpoints.save(2, state, {})
        with refused("/00000002", "could not be written", "File too large", error=CheckpointError):
            checkpoints.wait()
    checkpoints.wait()
    assert checkpoints.latest() == 1
    assert_same_bits(checkpoints.restore(1, like(LARGE, mesh)), LARGE)
    checkpoints.save(3, state, {})
    checkpoints.wait()
    assert os.listdir(tmp_path / "checkpoints") == ["00000003"], "what there was of the failed one would fill the disk"


def test_a_failed_save_surfaces_at_the_next_save_and_then_saving_works_again(checkpointer, tmp_path):
    state = put(LARGE, mesh_of(fsdp=8))
    checkpoints = checkpointer()
    with full_disk(LIMIT):
        checkpoints.save(1, state, {})
        with pytest.raises(CheckpointError, match="File too large"):
            checkpoints.save(2, state, {})
    checkpoints.save(1, state, {})
    assert checkpoints.latest() == 1
    assert os.listdir(tmp_path / "checkpoints") == ["00000001"]


def test_a_manifest_that_does_not_fit_leaves_no_checkpoint(checkpointer, monkeypatch):
    encode = manifest.encode
    checkpoints = checkpointer()
    checkpoints.save(1, {"x": jnp.ones(3)}, {})
    checkpoints.wait()
    with full_disk(LIMIT), monkeypatch.context() as patch:
        patch.setattr(manifest, "encode", lambda *contents: encode(*contents) + b" " * 2 * LIMIT)
        checkpoints.save(2, {"x": jnp.ones(3)}, {})
        with refused("/00000002", "could not be written", "File too large", error=CheckpointError):
            checkpoints.wait()
    assert checkpoints.latest() == 1


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done, and its answer lost"])
def test_a_rename_that_fails_as_on_nfs_costs_that_checkpoint_alone(checkpointer, monkeypatch, tmp_path, done):
    """NFS sends a rename again whose answer was lost: the second one finds no file."""
    checkpoints, state, replace = checkpointer(), {"x": jnp.ones(3)}, os.replace
    checkpoints.save(1, state, {})
    checkpoints.wait()

    def fails(source: Path, target: Path) -> None:
        if done:
            replace(source, target)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)

    with monkeypatch.context() as patch:
        patch.setattr(manifest.os, "replace", fails)
        checkpoints.save(2, state, {})
        with refused("/00000002", "could not be written", "No such file", error=CheckpointError):
            checkpoints.wait()
    assert os.listdir(tmp_path / "checkpoints") == ["00000001"]
    checkpoints.save(2, state, {})
    assert checkpoints.latest() == 2


def test_facts_that_do_not_fit_leave_no_checkpoint(checkpointer, tmp_path):
    checkpoints = checkpointer()
    with full_disk(LIMIT), refused("/00000001", "could not be written", "File too large", error=CheckpointError):
        checkpoints.save(1, {"x": jnp.ones(3)}, {"fact": "x" * 2 * LIMIT})
    assert os.listdir(tmp_path / "checkpoints") == []


SCRIPT = """
import resource, sys, warnings
warnings.simplefilter("always")
from pathlib import Path
import jax.numpy as jnp
from jaxpar.checkpoint import Checkpointer, CheckpointError

state = {name: jnp.ones((2**18,)) for name in "abcdefgh"}
print("ready", file=sys.stderr, flush=True)
checkpoints = Checkpointer(Path(sys.argv[1]), keep_last=1, keep_every=None, report=print)
checkpoints.save(1, state, {})
checkpoints.save(2, state, {})
checkpoints.restore(checkpoints.latest(), state)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, -1))
for step in range(3, 8):
    checkpoints.save(step, state, {})
    try:
        checkpoints.wait()
    except CheckpointError as error:
        print(str(error).split(" (")[1].split(")")[0])
checkpoints.close()
"""


def test_saving_restoring_and_failing_put_nothing_on_the_screen(tmp_path):
    """In a process of its own, where no test runner catches warnings, logs and unraisable exceptions."""
    done = run_python("-c", SCRIPT, tmp_path)
    assert (done.returncode, done.stdout) == (0, "File too large\n" * 5), done.stderr
    # What JAX prints while it looks for devices comes before the mark, and is not ours.
    assert done.stderr.split("ready\n")[1] == ""
