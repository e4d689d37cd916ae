"""Processes that save step 1, then step 2, and say when; another process kills them in between.

Arguments: a folder, and for each process `before` or `after`. Each has a subfolder, named by its index, and prints its
process id: with `before` when the save of step 2 is about to begin, with `after` when `save` has returned and the
writing goes on in the background. They run one after another, forked from this process, which has imported everything
but has touched no device yet.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from jaxpar.checkpoint import Checkpointer
from tests.checkpoint.states import mesh_of, put

SHAPE = (8, 2**20)


def state_of(step: int) -> dict[str, np.ndarray]:
    return {"x": np.full(SHAPE, step, np.float32), "step": np.int32(step)}


def save(folder: Path, when: str) -> None:
    checkpoints = Checkpointer(folder, keep_last=2, keep_every=None, report=print)
    mesh = mesh_of(fsdp=8)
    checkpoints.save(1, put(state_of(1), mesh), {"step": 1})
    checkpoints.wait()
    state = put(state_of(2), mesh)
    if when == "before":
        print(os.getpid(), flush=True)
    checkpoints.save(2, state, {"step": 2})
    if when == "after":
        print(os.getpid(), flush=True)
    checkpoints.close()
    time.sleep(60)


def main(folder: Path, moments: list[str]) -> None:
    for index, when in enumerate(moments):
        child = os.fork()
        if child == 0:
            save(folder / str(index), when)
            os._exit(1)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
