"""Files of arrays on disk, in a folder that several processes share."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpar.memory.disk_array import SCRATCH, STALE_S, DiskArray, remove_stale
from tests.sentences import refused


def array_of(folder: Path, value: int) -> DiskArray:
    sharding = NamedSharding(Mesh(jax.devices()[:1], "x"), PartitionSpec())
    array = DiskArray(folder, jax.ShapeDtypeStruct((4, 3), jnp.float32, sharding=sharding))
    array.write(0, jnp.full((4, 3), value, jnp.float32))
    return array


def content(array: DiskArray) -> np.ndarray:
    ((_, rows),) = array.read(0, None)
    return rows


def test_processes_of_one_id_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in two containers that share a folder, where the second one makes its file before the first one unlinks."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    unlink, others = Path.unlink, []

    def late(path: Path, missing_ok: bool = False) -> None:
        if not others:
            others.append(None)
            others[0] = array_of(tmp_path, 2)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", late)
    first = array_of(tmp_path, 1)
    assert content(first).tolist() == [[1.0] * 3] * 4
    assert content(others[0]).tolist() == [[2.0] * 3] * 4
    assert list(tmp_path.iterdir()) == []


def test_only_old_files_are_removed(tmp_path: Path):
    names = {"old": f"{SCRATCH}0123", "new": f"{SCRATCH}4567", "other": "checkpoints"}
    for name in names.values():
        (tmp_path / name).touch()
    past = (tmp_path / names["old"]).stat().st_mtime - STALE_S - 60
    for name in ("old", "other"):
        os.utime(tmp_path / names[name], (past, past))
    remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {names["new"], names["other"]}


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with refused("memory.offload_dir", str(tmp_path / "file"), "Not a directory"):
        remove_stale(tmp_path / "file" / "folder")
