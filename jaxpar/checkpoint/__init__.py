"""Checkpoints: asynchronous, atomic, verified, and restorable onto any mesh.

`Checkpointer` is the whole interface. Orbax writes and reads the arrays; the check whether a checkpoint may be trusted
(the manifest with its step and a digest of every file) is here. See `docs/checkpoints.md`.
"""

from jaxpar.checkpoint.checkpointer import Checkpointer
from jaxpar.checkpoint.errors import CheckpointError

__all__ = ["CheckpointError", "Checkpointer"]
