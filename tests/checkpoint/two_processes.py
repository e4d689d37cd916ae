"""One of two processes that share a checkpoint folder. Arguments: its index, the coordinator's port, the folder.

It stops with an assertion where a promise is broken; the parent looks at the exit status and at the folder.
"""

import re
import resource
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpar.checkpoint import Checkpointer, CheckpointError, arrays, digests, manifest, processes
from jaxpar.checkpoint.pieces import Pieces
from tests.checkpoint.states import host_state, like, mesh_of, sharding_of

LARGE = {"x": np.ones((8, 2**19), np.float32)}


def put(state: Any, mesh: jax.sharding.Mesh) -> Any:
    """Global arrays from a host copy that every process has."""
    return jax.tree.map(
        lambda value: jax.make_array_from_callback(
            value.shape, sharding_of(mesh, value.shape), lambda index: np.asarray(value[index])
        ),
        state,
    )


def refusal(call: Any) -> str:
    try:
        call()
    except CheckpointError as error:
        return str(error)
    raise AssertionError("nothing was refused")


class Rows(Pieces):
    """An array of four rows, two of each process, and one in each piece."""

    shape, dtype, piece_shape = (4, 8), np.dtype(np.float32), (1, 8)

    def pieces(self):
        for row in range(2 * jax.process_index(), 2 * jax.process_index() + 2):
            yield (slice(row, row + 1), slice(0, 8)), np.full((1, 8), row, np.float32)

    def restored(self, read, rows):
        return read((slice(0, 4), slice(0, 8)))


class Read:
    """Names of the files of a checkpoint that this process has read for their digests, in the order of reading."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.names = folder, []
        self._read, digests._piece_digest = digests._piece_digest, self

    def __call__(self, path: Path, start: int) -> bytes:
        if path.is_relative_to(self._folder):
            self.names.append(path.relative_to(self._folder).as_posix())
        return self._read(path, start)

    def of_all(self) -> list[list[str]]:
        """The names of every process, which are forgotten."""
        names, self.names = sorted(self.names), []
        return processes.judged(" ".join(names), lambda texts: [text.split() for text in texts])


def check_shares(folder: Path, mesh: jax.sharding.Mesh) -> None:
    """Each process reads what it wrote when it saves, and its share when it restores, and no file is read by both."""
    checkpoints = Checkpointer(folder, keep_last=2, keep_every=None, report=print)
    read = Read(folder / "00000001")
    checkpoints.save(1, {**put(LARGE, mesh), "rows": Rows()}, {})
    checkpoints.wait()
    files = manifest.read(folder / "00000001").files
    first, second = read.of_all()
    # Process 0 reads the facts of each complete checkpoint once more, to decide which to delete.
    first.remove("facts.json")
    assert sorted(first + second) == sorted(files)
    large = [name for name in second if name.startswith("state/ocdbt.process_1/")]
    assert sum(files[name].size for name in large) >= LARGE["x"].nbytes / 2
    assert set(second) == {*large, "pieces/rows/2.0", "pieces/rows/3.0"}
    assert sum(files[name].size for name in first) < 0.6 * LARGE["x"].nbytes

    assert checkpoints.latest() == 1
    first, second = read.of_all()
    assert sorted(first + second) == sorted(files)
    for names in (first, second):
        assert sum(files[name].size for name in names) < 0.6 * LARGE["x"].nbytes
    restored = checkpoints.restore(1, {**like(LARGE, mesh), "rows": Rows()})
    assert restored["rows"].tolist() == [[row] * 8 for row in range(4)]
    checkpoints.close()


def main(index: int, port: str, folder: Path) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    assert jax.device_count() == 4 and jax.local_device_count() == 2
    arrays.COMMIT_TIMEOUT_S = 3  # How long a process waits for one whose write has failed.
    reports: list[str] = []
    checkpoints = Checkpointer(folder, keep_last=2, keep_every=None, report=reports.append)
    mesh = mesh_of(fsdp=2, tensor=2)

    for step in (1, 2, 3):
        checkpoints.save(step, put(host_state(step), mesh), {"step": step})
    checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["00000002", "00000003"]
    assert (folder / "00000003" / "manifest.json").exists(), "complete on one process, but not on the other"
    assert checkpoints.latest() == 3 and checkpoints.facts(3) == {"step": 3}

    assert "exists already" in refusal(lambda: checkpoints.save(3, put(host_state(3), mesh), {}))
    assert "no checkpoint of step 9" in refusal(lambda: checkpoints.facts(9))

    # Only process 1 meets a full disk; both must hear of it, with its reason.
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if index == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limit[1]))
    checkpoints.save(4, put(LARGE, mesh), {})
    assert re.search(r"00000004 could not be written \(File too large\)", refusal(checkpoints.wait))
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert checkpoints.latest() == 3
    checkpoints.save(4, put(LARGE, mesh), {})
    assert checkpoints.latest() == 4

    # A damage that process 0 finds is known to both; only process 0 speaks.
    if index == 0:
        (folder / "00000004" / "facts.json").write_text("{}")
    reports.clear()
    assert checkpoints.latest() == 3
    assert len(reports) == (1 if index == 0 else 0)
    assert "cannot be used, because facts.json" in refusal(lambda: checkpoints.restore(4, like(LARGE, mesh)))

    other = mesh_of(fsdp=4)
    for got, want in zip(
        jax.tree.leaves(checkpoints.restore(3, like(host_state(3), other))), jax.tree.leaves(host_state(3)), strict=True
    ):
        for shard in got.addressable_shards:
            assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(want[shard.index]).tobytes()
    checkpoints.close()
    check_shares(folder / "shares", mesh)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
