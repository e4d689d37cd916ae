"""One of two processes that share a checkpoint folder. Arguments: its index, the coordinator's port, the folder.

It stops with an assertion where a promise is broken; the parent looks at the exit status and at the folder.
"""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpar.checkpoint import Checkpointer, CheckpointError, arrays
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


def main(index: int, port: str, folder: Path) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    assert jax.device_count() == 4
    assert jax.local_device_count() == 2
    arrays.COMMIT_TIMEOUT_S = 3  # How long a process waits for one whose write has failed.
    reports: list[str] = []
    checkpoints = Checkpointer(folder, keep_last=2, keep_every=None, report=reports.append)
    mesh = mesh_of(fsdp=2, tensor=2)

    for step in (1, 2, 3):
        checkpoints.save(step, put(host_state(step), mesh), {"step": step})
    checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["00000002", "00000003"]
    assert (folder / "00000003" / "manifest.json").exists(), "complete on one process, but not on the other"
    assert checkpoints.latest() == 3
    assert checkpoints.facts(3) == {"step": 3}

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


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
