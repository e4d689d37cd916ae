"""Devices that have no pinned host memory."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np


def unpinned_mesh(kind: str) -> Any:
    """As much of a mesh of one such device, of this kind, as checks of memory look at."""
    memories = [SimpleNamespace(kind="device")]
    device = SimpleNamespace(process_index=jax.process_index(), device_kind=kind, addressable_memories=lambda: memories)
    return SimpleNamespace(devices=np.array([device]))
