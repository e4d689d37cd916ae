"""A process that saves step 1, then step 2, and says when; its parent kills it. Arguments: folder, `before` or `after`.

With `before` it speaks when the save of step 2 is about to begin, with `after` when `save` has returned and the writing
goes on in the background.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from jaxpar.checkpoint import Checkpointer
from tests.checkpoint.states import mesh_of, put

SHAPE = (8, 2**20)


def state_of(step: int) -> dict[str, np.ndarray]:
    return {"x": np.full(SHAPE, step, np.float32), "step": np.int32(step)}


def main(folder: Path, when: str) -> None:
    checkpoints = Checkpointer(folder, keep_last=2, keep_every=None, report=print)
    mesh = mesh_of(fsdp=8)
    checkpoints.save(1, put(state_of(1), mesh), {"step": 1})
    checkpoints.wait()
    state = put(state_of(2), mesh)
    if when == "before":
        print("saving", flush=True)
    checkpoints.save(2, state, {"step": 2})
    if when == "after":
        print("saving", flush=True)
    checkpoints.close()
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
